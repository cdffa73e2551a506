// Sums over rows: tiles of columns, blocks of rows, and a second pass over the blocks.
#include <type_traits>

#include "trireme/kernels/cuda_plugin/activations.cuh"
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kLanes = 32, kSteps = 8;  // of a block: columns' vectors, and rows at a time

constexpr int kBlockSteps = 32;
constexpr std::int64_t kCardBlocks = 2112;

template <typename A>
__global__ void __launch_bounds__(kLanes* kBlockSteps)
    add_blocks_kernel(const CudaColumnSums sums, std::int64_t blocks, std::int64_t width) {
  __shared__ A parts[kBlockSteps][kLanes + 1];
  A* target = static_cast<A*>(blockIdx.y == 0 ? sums.first : sums.second);
  const bool begin = blockIdx.y == 0 ? sums.begin_first : sums.begin_second;
  if (target == nullptr) return;
  const A* partial = static_cast<const A*>(sums.partial) + static_cast<std::int64_t>(blockIdx.y) * blocks * width;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  A total = 0;
  if (column < width) {
#pragma unroll 4
    for (std::int64_t block = threadIdx.y; block < blocks; block += kBlockSteps) {
      total += partial[block * width + column];
    }
  }
  parts[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  // A warp takes a column: lane i has what row i of threads added up.
  const std::int64_t mine = static_cast<std::int64_t>(blockIdx.x) * kLanes + threadIdx.y;
  total = warp_sum(parts[threadIdx.x][threadIdx.y]);
  if (threadIdx.x == 0 && mine < width) target[mine] = (begin ? A(0) : target[mine]) + total;
}

// What a block adds up, in two halves: what is read of a row, and what becomes of it. A thread reads some rows before
// it uses the first of them, since writes of one row would hold back reads of the next.

/// A row's numbers as they are.
template <typename T>
struct Plain {
  static constexpr int kAtOnce = 8;
  SumRowsLoop c;
  template <int kVec>
  using Raw = Pack<T, kVec>;
  template <int kVec>
  __device__ __forceinline__ Raw<kVec> read(std::int64_t row, std::int64_t column) const {
    return load_pack<kVec>(row_of<const T>(c.x, row, c.stride) + column);
  }
  template <int kVec>
  __device__ __forceinline__ void use(const Raw<kVec>& raw, std::int64_t, std::int64_t, Sum<T> (&x)[kVec]) const {
#pragma unroll
    for (int k = 0; k < kVec; ++k) x[k] = widen(raw.v[k]);
  }
};

/// dy f'(x + bias), which is also written; f(x + bias) too where there is room for it.
template <typename T, typename F>
struct Slopes {
  static constexpr int kAtOnce = 2;  // more would cost the registers of other threads
  ActivationLoop c;
  template <int kVec>
  struct Raw {
    Pack<T, kVec> x, dy;
  };
  template <int kVec>
  __device__ __forceinline__ Raw<kVec> read(std::int64_t row, std::int64_t column) const {
    return {load_pack<kVec>(row_of<const T>(c.x, row, c.x_stride) + column),
            load_pack<kVec>(row_of<const T>(c.dy, row, c.dy_stride) + column)};
  }
  template <int kVec>
  __device__ __forceinline__ void use(const Raw<kVec>& raw, std::int64_t row, std::int64_t column,
                                      Sum<T> (&d)[kVec]) const {
    Sum<T> y[kVec];
    slopes<F, kVec>(c, column, raw.x, raw.dy, d, y);
    store<kVec>(row_of<T>(c.out, row, c.out_stride) + column, d);
    if (c.y != nullptr) store<kVec>(row_of<T>(c.y, row, c.y_stride) + column, y);
  }
};

template <typename T, int kVec, typename Row>
__global__ void __launch_bounds__(256)
    column_sums(const Row row_of_it, Sum<T>* partial, std::int64_t rows, std::int64_t width) {
  using A = Sum<T>;
  constexpr int kAtOnce = Row::kAtOnce;
  __shared__ A parts[kSteps][kLanes * kVec];
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kLanes + threadIdx.x) * kVec;
  // Whole turns for all blocks but the last ones: no test stands between a turn's reads.
  constexpr std::int64_t kTurn = kAtOnce * kSteps;
  const std::int64_t per_block = divided_up(divided_up(rows, gridDim.y), kTurn) * kTurn;
  const std::int64_t begin = blockIdx.y * per_block, end = min(begin + per_block, rows);
  A total[kVec] = {};
  const auto turn = [&](std::int64_t row, auto count) {
    typename Row::template Raw<kVec> raw[count()];
#pragma unroll
    for (int t = 0; t < count(); ++t) raw[t] = row_of_it.template read<kVec>(row + t * kSteps, column);
#pragma unroll
    for (int t = 0; t < count(); ++t) {
      A x[kVec];
      row_of_it.template use<kVec>(raw[t], row + t * kSteps, column, x);
#pragma unroll
      for (int k = 0; k < kVec; ++k) total[k] += x[k];
    }
  };
  if (column < width) {
    std::int64_t row = begin + threadIdx.y;
    for (; row + (kAtOnce - 1) * kSteps < end; row += kTurn) turn(row, std::integral_constant<int, kAtOnce>());
    for (; row < end; row += kSteps) turn(row, std::integral_constant<int, 1>());
  }
#pragma unroll
  for (int k = 0; k < kVec; ++k) parts[threadIdx.y][threadIdx.x * kVec + k] = total[k];
  __syncthreads();
  for (int i = threadIdx.y * kLanes + threadIdx.x; i < kLanes * kVec; i += 256) {
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kLanes * kVec + i;
    if (at >= width) continue;
    A sum = 0;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) sum += parts[step][i];
    partial[blockIdx.y * width + at] = sum;
  }
}

template <typename T, typename Row>
CudaError sum_columns(const Row& row, bool wide, const CudaColumnSums& sums, std::int64_t rows, std::int64_t width,
                      CudaStream stream) {
  using A = Sum<T>;
  const std::int64_t tiles = divided_up(width, kLanes * (wide ? kWide<T> : 1));
  // Enough blocks to fill a card, each with some rows.
  std::int64_t blocks = divided_up(kCardBlocks, tiles);
  if (blocks > divided_up(rows, kSteps)) blocks = divided_up(rows, kSteps);
  if (blocks > kCudaSumBlocks / 2) blocks = kCudaSumBlocks / 2;  // the second pass reads them all
  A* partial = static_cast<A*>(sums.partial);
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(blocks)), threads(kLanes, kSteps);
  if (wide) {
    column_sums<T, kWide<T>><<<grid, threads, 0, to_stream(stream)>>>(row, partial, rows, width);
  } else {
    column_sums<T, 1><<<grid, threads, 0, to_stream(stream)>>>(row, partial, rows, width);
  }
  if (CudaError error = launched()) return error;
  return add_blocks<A>(sums, blocks, width, stream);
}

}  // namespace

template <typename A>
CudaError add_blocks(const CudaColumnSums& sums, std::int64_t blocks, std::int64_t width, CudaStream stream) {
  const dim3 grid(static_cast<unsigned>(divided_up(width, kLanes)), sums.second == nullptr ? 1 : 2);
  add_blocks_kernel<A><<<grid, dim3(kLanes, kBlockSteps), 0, to_stream(stream)>>>(sums, blocks, width);
  return launched();
}
template CudaError add_blocks<float>(const CudaColumnSums&, std::int64_t, std::int64_t, CudaStream);
template CudaError add_blocks<double>(const CudaColumnSums&, std::int64_t, std::int64_t, CudaStream);

CudaError sum_rows(const SumRowsLoop& c, const CudaColumnSums& sums, Element element, std::int64_t rows,
                   CudaStream stream) {
  if (rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    return sum_columns<T>(Plain<T>{c}, wide_rows(c.x, c.stride, c.width, sizeof(T)), sums, rows, c.width, stream);
  });
}

CudaError activation_backward_sums(const ActivationLoop& c, const CudaColumnSums& sums, int kind, Element element,
                                   std::int64_t rows, CudaStream stream) {
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const bool wide = wide_backward(c, sizeof(T));
    return by_kind(kind, [&](auto function) {
      return sum_columns<T>(Slopes<T, decltype(function)>{c}, wide, sums, rows, c.width, stream);
    });
  });
}

}  // namespace trireme::kernels::gpu
