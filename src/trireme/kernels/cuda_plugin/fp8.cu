// 8-bit floats with scales: a block takes a tile of 128 x 128 numbers, rounds them, and leaves them as they lie,
// transposed, or both. A scale belongs to the whole tensor, to 128 neighbours along what a GEMM sums over, or to a
// tile.
#include "trireme/kernels/cuda_plugin/activations.cuh"
#include "trireme/kernels/cuda_plugin/fp8_tiles.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

template <typename T>
__global__ void __launch_bounds__(kThreads) largest_of(const CudaFp8 c, std::int64_t vectors) {
  constexpr int kAtOnce = 4;
  const T* x = static_cast<const T*>(c.x);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const auto at = [&](std::int64_t i) {
    const std::int64_t row = i * kVec / c.width;
    return load_raw<kVec>(x + row * c.stride + (i * kVec - row * c.width));
  };
  float top = 0;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kAtOnce - 1) * step < vectors; i += kAtOnce * step) {
    Raw<T, kVec> raw[kAtOnce];
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) raw[t] = at(i + t * step);
    top = fmaxf(top, largest(largest_each(raw)));
  }
  for (; i < vectors; i += step) top = fmaxf(top, largest(at(i)));
  top = warp_max(top);
  if (threadIdx.x % 32 == 0) raise(c.largest, top);
}

__device__ __forceinline__ float most_of(CudaFp8::Format format) {
  return format == CudaFp8::kE4m3 ? 448.0f : 57344.0f;
}
/// What numbers are divided by. All zeros: anything would do.
__device__ __forceinline__ float scale_for(float top, CudaFp8::Format format) {
  return top > 0 ? top / most_of(format) : 1.0f;
}

// What is rounded: of a thread's rows, the eight neighbours at a column.

template <typename T>
struct AsItLies {
  static constexpr int kBlocks = sizeof(T) == 2 ? 3 : 2;  // of a multiprocessor
  __device__ __forceinline__ static void read(const CudaFp8& c, std::int64_t row, std::int64_t column,
                                              Raw<T, kVec> (&to)[kTurns]) {
    const T* x = static_cast<const T*>(c.x) + row * c.stride + column;
#pragma unroll
    for (int t = 0; t < kTurns; ++t) to[t] = load_raw<kVec>(x + t * c.stride);
  }
};

/// f(x) up, to the bit as if it had been written and read again. Two rows at a time: more would take the registers of
/// what is under way in other threads (measured: 4.2 TB/s where four rows had 4.0 and eight 3.9).
template <typename T, typename F>
struct Gated {
  static constexpr int kBlocks = 3, kAtOnce = 2;
  __device__ __forceinline__ static void read(const CudaFp8& c, std::int64_t row, std::int64_t column,
                                              Raw<T, kVec> (&to)[kTurns]) {
    const T* x = static_cast<const T*>(c.x) + row * c.stride + column;
    const T* up = static_cast<const T*>(c.up) + row * c.up_stride + column;
#pragma unroll
    for (int begin = 0; begin < kTurns; begin += kAtOnce) {
      Raw<T, kVec> other[kAtOnce];
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        to[begin + t] = load_raw<kVec>(x + (begin + t) * c.stride);
        other[t] = load_raw<kVec>(up + (begin + t) * c.up_stride);
      }
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        Sum<T> product[kVec];
#pragma unroll
        for (int k = 0; k < kVec; ++k) product[k] = F::value(to[begin + t][k]) * other[t][k];
        to[begin + t] = to_raw<T, kVec>(product);
      }
    }
  }
};

/// Lines of 128 in a tile: what their numbers are multiplied by, found once for each.
struct LineShares {
  float rows[kTile], columns[kTile];
};

/// Tops of all lines of a tile, then their scales, by a thread each. `room` is free until then: [16 groups of
/// rows][128].
template <typename T>
__device__ __forceinline__ void find_lines(const CudaFp8& c, const Raw<T, kVec> (&raw)[kTurns], std::int64_t first_row,
                                           std::int64_t first_column, float* room, LineShares& shares) {
  const int lane = threadIdx.x % kAcross, line = threadIdx.x / kAcross;
  const Raw<T, kVec> tops = largest_each(raw);
  float columns[kVec];
#pragma unroll
  for (int k = 0; k < kVec; ++k) columns[k] = tops[k];
  store_shared<4>(room + line * kTile + lane * kVec, {columns[0], columns[1], columns[2], columns[3]});
  store_shared<4>(room + line * kTile + lane * kVec + 4, {columns[4], columns[5], columns[6], columns[7]});
#pragma unroll
  for (int t = 0; t < kTurns; ++t) {
    float top = largest(raw[t]);
#pragma unroll
    for (int step = kAcross / 2; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    if (lane == 0) shares.rows[line * kTurns + t] = top;
  }
  __syncthreads();
  static_assert(kThreads == 2 * kTile);
  const int at = threadIdx.x % kTile;
  if (threadIdx.x < kTile) {
    float top = room[at];
#pragma unroll
    for (int group = 1; group < kThreads / kAcross; ++group) top = fmaxf(top, room[group * kTile + at]);
    const float scale = scale_for(top, c.format);
    shares.columns[at] = 1.0f / scale;
    if (c.column_scales != nullptr && first_column + at < c.width)
      c.column_scales[blockIdx.y * c.column_scale_stride + first_column + at] = scale;
  } else {
    const float scale = scale_for(shares.rows[at], c.format);
    shares.rows[at] = 1.0f / scale;
    if (c.row_scales != nullptr && first_row + at < c.rows)
      c.row_scales[blockIdx.x * c.row_scale_stride + first_row + at] = scale;
  }
  __syncthreads();
}

/// A thread holds its numbers as they lie, which leaves registers for more threads.
template <typename T, CudaFp8::Scaling kScaling, typename Source = AsItLies<T>>
__global__ void __launch_bounds__(kThreads, Source::kBlocks) round_tiles(const CudaFp8 c) {
  constexpr bool kLines = kScaling == CudaFp8::kLine;
  __shared__ unsigned tile_top;
  __shared__ std::conditional_t<kLines, LineShares, char> shares;
  __shared__ __align__(16) std::uint8_t transposed[kTile * kTile];
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int lane = threadIdx.x % kAcross, line = threadIdx.x / kAcross;
  const std::int64_t column = first_column + lane * kVec, row = first_row + line * kTurns;
  Raw<T, kVec> raw[kTurns] = {};
  if (row < c.rows && column < c.width) Source::read(c, row, column, raw);  // sizes are multiples of eight
  float whole = 0;
  if constexpr (kScaling == CudaFp8::kWhole) {
    if (c.amax != nullptr) {
      const float top = warp_max(largest(largest_each(raw)));
      if (threadIdx.x % 32 == 0) raise(c.amax, top);
    }
    whole = c.scale != nullptr ? *c.scale : scale_for(*static_cast<const float*>(c.largest), c.format);
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
      if (c.row_scales != nullptr) *c.row_scales = whole;
      if (c.column_scales != nullptr) *c.column_scales = whole;
    }
  } else if constexpr (kScaling == CudaFp8::kTile) {
    if (threadIdx.x == 0) tile_top = 0;
    __syncthreads();
    const float top = warp_max(largest(largest_each(raw)));
    if (threadIdx.x % 32 == 0) atomicMax(&tile_top, __float_as_uint(top));
    __syncthreads();
    whole = scale_for(__uint_as_float(tile_top), c.format);
    if (threadIdx.x == 0) {
      if (c.row_scales != nullptr) c.row_scales[blockIdx.y * c.row_scale_stride + blockIdx.x] = whole;
      if (c.column_scales != nullptr) c.column_scales[blockIdx.x * c.column_scale_stride + blockIdx.y] = whole;
    }
  } else {
    find_lines(c, raw, first_row, first_column, reinterpret_cast<float*>(transposed), shares);
  }
  const TileOut out{.rows = c.out_rows,
                    .columns = c.out_columns,
                    .row_stride = c.width,
                    .column_stride = c.rows,
                    .first_row = first_row,
                    .first_column = first_column,
                    .rows_end = c.rows,
                    .columns_end = c.width};
  const auto number = [&](int t, int k) { return raw[t][k]; };
  if constexpr (kLines) {
    leave_tile(
        number, out, c.format, transposed, [&](int t) { return shares.rows[line * kTurns + t]; },
        [&](int k) { return shares.columns[lane * kVec + k]; });
  } else {
    const float share = 1.0f / whole;
    const auto same = [share](int) { return share; };
    leave_tile(number, out, c.format, transposed, same, same);
  }
}

/// A row of the table: the largest number of this step, the scale, the format's largest, and those of earlier steps.
__global__ void __launch_bounds__(kThreads)
    advance(float* table, std::int64_t tensors, std::int64_t width, std::int64_t slot, float factor) {
  const std::int64_t tensor = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (tensor >= tensors) return;
  float* row = table + tensor * width;
  if (row[0] > 0 && isfinite(row[0])) row[3 + slot] = row[0];
  row[0] = 0;
  float top = 0;
  for (std::int64_t i = 3; i < width; ++i) top = fmaxf(top, row[i]);
  if (top > 0) row[1] = __fmul_rn(__fdiv_rn(top, row[2]), factor);
}

}  // namespace

CudaError fp8(const CudaFp8& c, CudaStream stream) {
  if (c.rows == 0 || c.width == 0) return nullptr;
  if (c.width % kVec != 0 || c.rows % kTurns != 0 || c.stride % kVec != 0) return "sizes that FP8 GEMMs do not take";
  if (c.scale != nullptr && c.scaling != CudaFp8::kWhole) return "a scale of blocks comes from their numbers";
  const dim3 grid(static_cast<unsigned>(divided_up(c.width, kTile)), static_cast<unsigned>(divided_up(c.rows, kTile)));
  if (grid.y > 65535) return "more than 8 million rows";
  if (c.element == Element::kDouble) return "doubles are not rounded to 8 bits";
  if (c.up != nullptr && (c.scale == nullptr || c.up_stride % kVec != 0))
    return "what is made on its way to 8 bits needs a known scale and whole vectors";
  return by_type(c.element, [&](auto type) -> CudaError {
    using T = decltype(type);
    if constexpr (sizeof(T) == 8) {
      return nullptr;
    } else {
      if (c.scaling == CudaFp8::kWhole && c.scale == nullptr) {
        if (cudaMemsetAsync(c.largest, 0, sizeof(float), to_stream(stream)) != cudaSuccess) return launched();
        const std::int64_t vectors = c.rows * c.width / kVec;
        std::int64_t blocks = divided_up(vectors, kThreads * 4);
        if (blocks > 1056) blocks = 1056;
        largest_of<T><<<static_cast<unsigned>(blocks), kThreads, 0, to_stream(stream)>>>(c, vectors);
        if (CudaError error = launched()) return error;
      }
      if (c.up != nullptr) {
        return by_kind(c.activation, [&](auto function) {
          round_tiles<T, CudaFp8::kWhole, Gated<T, decltype(function)>><<<grid, kThreads, 0, to_stream(stream)>>>(c);
          return launched();
        });
      }
      if (c.scaling == CudaFp8::kWhole) {
        round_tiles<T, CudaFp8::kWhole><<<grid, kThreads, 0, to_stream(stream)>>>(c);
      } else if (c.scaling == CudaFp8::kLine) {
        round_tiles<T, CudaFp8::kLine><<<grid, kThreads, 0, to_stream(stream)>>>(c);
      } else {
        round_tiles<T, CudaFp8::kTile><<<grid, kThreads, 0, to_stream(stream)>>>(c);
      }
      return launched();
    }
  });
}

CudaError fp8_advance(float* table, std::int64_t tensors, std::int64_t width, std::int64_t slot, double factor,
                      CudaStream stream) {
  if (tensors == 0) return nullptr;
  advance<<<static_cast<unsigned>(divided_up(tensors, kThreads)), kThreads, 0, to_stream(stream)>>>(
      table, tensors, width, slot, static_cast<float>(factor));
  return launched();
}

}  // namespace trireme::kernels::gpu
