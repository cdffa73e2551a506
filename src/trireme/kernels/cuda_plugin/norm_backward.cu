// The way back through a norm. Rows stay in registers between their two passes, the next ones being on their way.
#include "trireme/kernels/cuda_plugin/functions.h"
#include "trireme/kernels/cuda_plugin/norm.cuh"

namespace trireme::kernels::gpu {
namespace {

/// Sums over the kThreads threads that share a row, of which a block has kRows: their warps meet at a barrier of their
/// own, and once, since two meetings in a row leave their parts in different places.
template <int kThreads, int kRows, typename A>
class RowSums {
 public:
  struct Parts {
    A sums[2][kRows][2][kThreads > 32 ? kThreads / 32 : 1];
  };
  __device__ __forceinline__ explicit RowSums(Parts& parts) : parts_(parts) {}

  /// Both the same on all of them afterwards.
  template <bool kTwo>
  __device__ __forceinline__ void add(A& a, A& b) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      a += __shfl_xor_sync(0xffffffffu, a, step);
      if constexpr (kTwo) b += __shfl_xor_sync(0xffffffffu, b, step);
    }
    if constexpr (kThreads > 32) {
      auto& parts = parts_.sums[turn_][threadIdx.y];
      turn_ ^= 1;
      if (threadIdx.x % 32 == 0) {
        parts[0][threadIdx.x / 32] = a;
        if constexpr (kTwo) parts[1][threadIdx.x / 32] = b;
      }
      meet();
      a = parts[0][0];
      if constexpr (kTwo) b = parts[1][0];
#pragma unroll
      for (int i = 1; i < kThreads / 32; ++i) {
        a += parts[0][i];
        if constexpr (kTwo) b += parts[1][i];
      }
    }
  }

 private:
  /// A barrier's number is known when the kernel is compiled: otherwise a block reserves all sixteen.
  __device__ __forceinline__ static void meet() {
    if constexpr (kRows == 1) {
      __syncthreads();
    } else {
      static_assert(kRows <= 4);
      if (threadIdx.y == 0) asm volatile("barrier.sync 1, %0;" ::"n"(kThreads) : "memory");
      if (threadIdx.y == 1) asm volatile("barrier.sync 2, %0;" ::"n"(kThreads) : "memory");
      if (threadIdx.y == 2) asm volatile("barrier.sync 3, %0;" ::"n"(kThreads) : "memory");
      if (threadIdx.y == 3) asm volatile("barrier.sync 4, %0;" ::"n"(kThreads) : "memory");
    }
  }
  Parts& parts_;
  int turn_ = 0;
};

/// Rows that are under way at a time, this one included; 0: a thread holds too much of a row for that.
constexpr int ring_stages(int threads, int hold) { return hold > 1 ? 0 : threads <= 192 ? 4 : 3; }

/// Rows blockIdx.x * kRows + threadIdx.y, and so on by the whole grid; a block's sums over its rows go to `partial`:
/// [block][width] for the weight, and behind all of these for the bias.
template <typename T, bool kLayer, int kThreads, int kRows, int kHold, bool kSums>
__global__ void __launch_bounds__(kThreads* kRows, kHold == 1   ? (kThreads == 224 ? 896 : 768) / (kThreads * kRows)
                                                   : kHold <= 3 ? 512 / (kThreads * kRows)
                                                                : 1)
    backward_held(const NormBackwardLoop c, const CudaNormWeights w, Sum<T>* partial, std::int64_t rows) {
  using A = Sum<T>;
  constexpr int kVec = kWide<T>;
  const int vectors = static_cast<int>(c.width / kVec);
  const A share = A(1) / static_cast<A>(c.width);
  A dweight[kSums ? kHold : 1][kVec] = {}, dbias[kSums && kLayer ? kHold : 1][kVec] = {};
  A weight[kHold][kVec];  // the same for every row
#pragma unroll
  for (int i = 0; i < kHold; ++i) {
    const int at = threadIdx.x + i * kThreads;
    if (at < vectors) load_weight<kVec>(w, at * kVec, weight[i]);
  }
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kRows;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.y;
  Raw<T, kVec> held_x[kHold], held_dy[kHold], held_dsum[kHold] = {};
  // Where a thread holds little, the next rows are on their way while this one is worked on: in shared memory, each
  // thread's own vectors, so that neither registers nor barriers limit how much is under way.
  extern __shared__ __align__(16) char room[];
  constexpr int kStages = ring_stages(kThreads * kRows, kHold);
  T* ring = reinterpret_cast<T*>(room);  // [kStages][x, dy, dsum][threads][kVec]
  const auto place = [&](int stage, int which) {
    return ring + ((stage * 3 + which) * (kThreads * kRows) + threadIdx.y * kThreads + threadIdx.x) * kVec;
  };
  __shared__ typename RowSums<kThreads, kRows, A>::Parts parts;
  RowSums<kThreads, kRows, A> row_sums(parts);
  const auto start = [&](std::int64_t row, int stage) {
    if (row < rows && static_cast<int>(threadIdx.x) < vectors) {
      const std::int64_t at = static_cast<std::int64_t>(threadIdx.x) * kVec;
      fetch16(place(stage, 0), row_of<const T>(c.x, row, c.x_stride) + at);
      fetch16(place(stage, 1), row_of<const T>(c.dy, row, c.dy_stride) + at);
      if (c.dsum != nullptr) fetch16(place(stage, 2), row_of<const T>(c.dsum, row, c.dsum_stride) + at);
    }
    close_fetches();  // an empty one too: they are counted
  };
  A next_rstd = 0, next_mean = 0;
  const auto look_up = [&](std::int64_t row) {
    if (row >= rows) return;
    next_rstd = static_cast<const A*>(c.rstd)[row];
    if constexpr (kLayer) next_mean = static_cast<const A*>(c.mean)[row];
  };
  int stage = 0;
  if constexpr (kStages > 0) {
#pragma unroll
    for (int s = 0; s + 1 < kStages; ++s) start(first + s * step, s);
  }
  look_up(first);
  for (std::int64_t row = first; row < rows; row += step) {
    if constexpr (kStages > 0) {
      wait_fetches<kStages - 2>();
      if (static_cast<int>(threadIdx.x) < vectors) {
        held_x[0] = load_raw<kVec>(place(stage, 0));
        held_dy[0] = load_raw<kVec>(place(stage, 1));
        if (c.dsum != nullptr) held_dsum[0] = load_raw<kVec>(place(stage, 2));
      }
      // Into what was read a row ago, by this very thread.
      start(row + (kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);
      stage = stage + 1 == kStages ? 0 : stage + 1;
    } else {
      const T* x = row_of<const T>(c.x, row, c.x_stride);
      const T* dy = row_of<const T>(c.dy, row, c.dy_stride);
      const T* dsum = c.dsum == nullptr ? nullptr : row_of<const T>(c.dsum, row, c.dsum_stride);
#pragma unroll
      for (int i = 0; i < kHold; ++i) {
        const int at = threadIdx.x + i * kThreads;
        if (at >= vectors) continue;
        held_x[i] = load_raw<kVec>(x + at * kVec);
        held_dy[i] = load_raw<kVec>(dy + at * kVec);
        if (dsum != nullptr) held_dsum[i] = load_raw<kVec>(dsum + at * kVec);
      }
    }
    const A rstd = next_rstd, mean = next_mean;
    look_up(row + step);
    A along = 0, mean_g = 0;
#pragma unroll
    for (int i = 0; i < kHold; ++i) {
      if (threadIdx.x + i * kThreads >= vectors) continue;
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const A normal = (held_x[i][k] - mean) * rstd, d = held_dy[i][k], g = d * weight[i][k];
        if constexpr (kSums) {
          dweight[i][k] = fma(d, normal, dweight[i][k]);
          if constexpr (kLayer) dbias[i][k] += d;
        }
        along = fma(g, normal, along);
        if constexpr (kLayer) mean_g += g;
      }
    }
    row_sums.template add<kLayer>(along, mean_g);
    // dx = dsum + (g - mean of g - normal * mean of (g normal)) rstd, with normal = (x - mean) rstd.
    along *= share * rstd;
    const A constant = -mean_g * share * rstd, slope = -rstd * along;
    T* dx = row_of<T>(c.dx, row, c.dx_stride);
#pragma unroll
    for (int i = 0; i < kHold; ++i) {
      const int at = threadIdx.x + i * kThreads;
      if (at >= vectors) continue;
      A out[kVec];
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const A g = held_dy[i][k] * weight[i][k];
        out[k] = held_dsum[i][k] + fma(g, rstd, fma(held_x[i][k] - mean, slope, constant));
      }
      store<kVec>(dx + at * kVec, out);
    }
  }
  if constexpr (kSums) {
    if constexpr (kStages > 0 && kRows > 1) {
      wait_fetches<0>();
      __syncthreads();  // the ring's memory has another use now
    }
    A* shared = reinterpret_cast<A*>(room);  // [kRows][width]
    const auto leave = [&](const auto& sums, A* to) {
      if constexpr (kRows == 1) {
#pragma unroll
        for (int i = 0; i < kHold; ++i) {
          const int at = threadIdx.x + i * kThreads;
          if (at < vectors) store<kVec>(to + at * kVec, sums[i]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kHold; ++i) {
          const int at = threadIdx.x + i * kThreads;
          if (at < vectors) store_shared<kVec>(shared + threadIdx.y * c.width + at * kVec, sums[i]);
        }
        __syncthreads();
        for (int column = threadIdx.y * kThreads + threadIdx.x; column < c.width; column += kThreads * kRows) {
          A total = 0;
#pragma unroll
          for (int r = 0; r < kRows; ++r) total += shared[r * c.width + column];
          to[column] = total;
        }
        __syncthreads();
      }
    };
    leave(dweight, partial + blockIdx.x * c.width);
    if constexpr (kLayer) leave(dbias, partial + (static_cast<std::int64_t>(gridDim.x) + blockIdx.x) * c.width);
  }
}

template <typename T, bool kLayer>
__global__ void __launch_bounds__(256)
    backward_any(const NormBackwardLoop c, const CudaNormWeights w, Sum<T>* partial, std::int64_t rows) {
  using A = Sum<T>;
  const A share = A(1) / static_cast<A>(c.width);
  A* dweight = partial == nullptr ? nullptr : partial + blockIdx.x * c.width;
  A* dbias = partial == nullptr ? nullptr : partial + (static_cast<std::int64_t>(gridDim.x) + blockIdx.x) * c.width;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = row_of<const T>(c.x, row, c.x_stride);
    const T* dy = row_of<const T>(c.dy, row, c.dy_stride);
    const A mean = kLayer ? static_cast<const A*>(c.mean)[row] : A(0);
    const A rstd = static_cast<const A*>(c.rstd)[row];
    A along = 0, mean_g = 0;
    for (std::int64_t i = threadIdx.x; i < c.width; i += 256) {
      A weight[1];
      load_weight<1>(w, i, weight);
      const A d = widen(dy[i]), normal = (widen(x[i]) - mean) * rstd;
      along += d * weight[0] * normal;
      mean_g += d * weight[0];
      if (partial != nullptr) {
        const bool begins = row == blockIdx.x;
        dweight[i] = (begins ? A(0) : dweight[i]) + d * normal;
        dbias[i] = (begins ? A(0) : dbias[i]) + d;
      }
    }
    along = sum_over<256>(along) * share;
    mean_g = kLayer ? sum_over<256>(mean_g) * share : A(0);
    T* dx = row_of<T>(c.dx, row, c.dx_stride);
    const T* dsum = c.dsum == nullptr ? nullptr : row_of<const T>(c.dsum, row, c.dsum_stride);
    for (std::int64_t i = threadIdx.x; i < c.width; i += 256) {
      A weight[1];
      load_weight<1>(w, i, weight);
      const A normal = (widen(x[i]) - mean) * rstd;
      const A inner = (widen(dy[i]) * weight[0] - mean_g - normal * along) * rstd;
      dx[i] = narrow<T>(dsum == nullptr ? inner : widen(dsum[i]) + inner);
    }
  }
}

/// The same for the backward pass, whose sums over rows take as many registers again: rows have more threads, and a
/// block several rows, so that fewer blocks leave sums to be added up.
template <typename T, typename Body>
bool by_width_back(std::int64_t vectors, Body&& body) {
  if constexpr (sizeof(T) == 2) {
    if (vectors <= 32) return shared_out<32, 4, 1>(body);
    if (vectors <= 64) return shared_out<64, 4, 1>(body);
    if (vectors <= 96) return shared_out<96, 4, 1>(body);
    if (vectors <= 128) return shared_out<128, 2, 1>(body);
    if (vectors <= 192) return shared_out<192, 2, 1>(body);
    if (vectors <= 224) return shared_out<224, 2, 1>(body);
    if (vectors <= 256) return shared_out<256, 1, 1>(body);
    if (vectors <= 512) return shared_out<256, 1, 2>(body);
    if (vectors <= 1024) return shared_out<256, 1, 4>(body);
    return false;
  } else {
    return by_width<T>(vectors, body);
  }
}

/// Blocks that a card works on at a time: one more would wait for all of them, and keep the card half empty.
template <typename Kernel>
std::int64_t resident_blocks(Kernel* kernel, int threads, std::size_t shared) {
  int device = 0, processors = 0, each = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, shared);
  return static_cast<std::int64_t>(processors) * (each > 0 ? each : 1);
}

template <typename T, bool kLayer>
CudaError backward(const NormBackwardLoop& c, const CudaNormWeights& w, const CudaColumnSums& sums, std::int64_t rows,
                   cudaStream_t stream) {
  using A = Sum<T>;
  const int size = sizeof(T);
  const bool wide = wide_rows(c.x, c.x_stride, c.width, size) && wide_rows(c.dy, c.dy_stride, c.width, size) &&
                    wide_rows(c.dx, c.dx_stride, c.width, size) && wide_rows(c.dsum, c.dsum_stride, c.width, size) &&
                    aligned(w);
  const bool with_sums = sums.first != nullptr || sums.second != nullptr;
  A* partial = with_sums ? static_cast<A*>(sums.partial) : nullptr;
  std::int64_t blocks = rows < kCudaSumBlocks ? rows : kCudaSumBlocks;
  CudaError refused = nullptr;
  // The bias of a root-mean-square norm is rare: the plain kernel serves it.
  const bool done =
      wide && (kLayer || sums.second == nullptr) &&
      by_width_back<T>(c.width / kWide<T>, [&](auto threads, auto at_once, auto hold) {
        const dim3 shape(threads(), at_once());
        const bool adds_up = with_sums && at_once() > 1;
        const std::size_t sums_room = adds_up ? at_once() * static_cast<std::size_t>(c.width) * sizeof(A) : 0;
        const std::size_t ring = static_cast<std::size_t>(ring_stages(threads() * at_once(), hold())) * 3 * threads() *
                                 at_once() * kWide<T> * sizeof(T);
        const std::size_t shared = sums_room > ring ? sums_room : ring;
        const auto kernel = with_sums ? backward_held<T, kLayer, threads(), at_once(), hold(), true>
                                      : backward_held<T, kLayer, threads(), at_once(), hold(), false>;
        if (refused = allow_shared(kernel, shared); refused != nullptr) return;
        blocks = divided_up(rows, at_once());
        for (const std::int64_t most : {kCudaSumBlocks, resident_blocks(kernel, threads() * at_once(), shared)}) {
          if (blocks > most) blocks = most;
        }
        kernel<<<static_cast<unsigned>(blocks), shape, shared, stream>>>(c, w, partial, rows);
      });
  if (refused != nullptr) return refused;
  if (!done) backward_any<T, kLayer><<<static_cast<unsigned>(blocks), 256, 0, stream>>>(c, w, partial, rows);
  if (CudaError error = launched(); error != nullptr || !with_sums) return error;
  return add_blocks<A>(sums, blocks, c.width, stream);
}

}  // namespace

CudaError norm_backward(const NormBackwardLoop& c, const CudaNormWeights& w, const CudaColumnSums& sums,
                        Element element, bool layer, std::int64_t rows, CudaStream stream) {
  if (rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    return layer ? backward<T, true>(c, w, sums, rows, to_stream(stream))
                 : backward<T, false>(c, w, sums, rows, to_stream(stream));
  });
}

}  // namespace trireme::kernels::gpu
