// Cross-entropy. Where a card has clusters, a row of logits is held in the shared memory of one block, or of a few that
// know each other, and is read and written once. Elsewhere, and for rows that do not fit, a block reads its row for the
// maximum and the sum, and again for the gradient.
#include <cooperative_groups.h>

#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 512;
constexpr int kStages = 4;               // parts of a row on their way to shared memory
constexpr int kMostHeld = 104 * 1024;    // bytes of a row that a block holds: two blocks fit a multiprocessor
constexpr std::int64_t kMostBlocks = 4;  // that share a row

constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;

/// A thread's, or a row's, logits in short. Powers are of 2, which the card has an instruction for.
template <typename A>
struct Totals {
  A largest = -INFINITY;  // of the logits times log2(e), rounded
  A sum = 0;              // of 2^(logit log2(e) - largest)
  A logits = 0;           // plain sum, where smoothing needs it

  template <int kVec>
  __device__ __forceinline__ void add(const A (&v)[kVec], bool with_logits) {
    A top = v[0];
#pragma unroll
    for (int k = 1; k < kVec; ++k) top = max(top, v[k]);
    top *= A(kLog2E);
    if (top > largest) {
      sum *= fast_exp2(largest - top);
      largest = top;
    }
    const A shift = safe(largest);
#pragma unroll
    for (int k = 0; k < kVec; ++k) sum += fast_exp2(fma(v[k], A(kLog2E), -shift));
    if (with_logits) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) logits += v[k];
    }
  }
  __device__ __forceinline__ void add(const Totals& other) {
    const A top = max(largest, other.largest), shift = safe(top);
    sum = sum * fast_exp2(largest - shift) + other.sum * fast_exp2(other.largest - shift);
    largest = top;
    logits += other.logits;
  }
  /// With nothing but -inf so far, -inf - -inf would be no number.
  __device__ static __forceinline__ A safe(A largest) { return largest == A(-INFINITY) ? A(0) : largest; }
  __device__ __forceinline__ A lse() const {
    return static_cast<A>((safe(largest) + log2(static_cast<double>(sum))) * kLn2);
  }
};

/// Over the threads of a block, the same on all of them.
template <typename A>
__device__ __forceinline__ Totals<A> over_block(const Totals<A>& mine, bool with_logits) {
  Totals<A> all;
  all.largest = max_over<kThreads>(mine.largest);
  const A shift = Totals<A>::safe(all.largest);
  all.sum = sum_over<kThreads>(mine.largest == A(-INFINITY) ? A(0) : mine.sum * fast_exp2(mine.largest - shift));
  if (with_logits) all.logits = sum_over<kThreads>(mine.logits);
  return all;
}

template <typename T, int kVec>
__device__ __forceinline__ Totals<Sum<T>> read_row(const T* x, int count, bool with_logits) {
  Totals<Sum<T>> mine;
#pragma unroll 4
  for (int i = threadIdx.x * kVec; i < count; i += kThreads * kVec) {
    Sum<T> v[kVec];
    load<kVec>(x + i, v);
    mine.add(v, with_logits);
  }
  return over_block(mine, with_logits);
}

/// x_j = e^(x_j - lse) share + flat, and more at the target. `from` may be a copy of `to`.
template <typename A>
struct Slope {
  A lse, share, flat, at_target;
  std::int64_t target;

  template <typename T, int kVec>
  __device__ __forceinline__ void write(T* to, const T* from, int count) const {
    const A shift = lse * A(kLog2E);
    const auto of = [&](A x) { return fma(fast_exp2(fma(x, A(kLog2E), -shift)), share, flat); };
    // The thread that has the target's vector writes it again, from what was there.
    const bool here = target >= 0 && target < count && target / kVec % kThreads == threadIdx.x;
    const A hit = here ? of(widen(from[target])) + at_target : A(0);
#pragma unroll 4
    for (int i = threadIdx.x * kVec; i < count; i += kThreads * kVec) {
      A v[kVec];
      load<kVec>(from + i, v);
#pragma unroll
      for (int k = 0; k < kVec; ++k) v[k] = of(v[k]);
      store<kVec>(to + i, v);
    }
    if (here) to[target] = narrow<T>(hit);
  }
};

/// d/dx_j (loss + z lse^2) = p_j (1 + 2 z lse) - smoothing / classes - (1 - smoothing) [j is the target]
template <typename A>
__device__ __forceinline__ Slope<A> slope_of(A scale, A lse, double smoothing, double z_loss, std::int64_t vocabulary,
                                             std::int64_t target) {
  const A smooth = static_cast<A>(smoothing);
  return {.lse = lse,
          .share = scale * (A(1) + A(2) * static_cast<A>(z_loss) * lse),
          .flat = -scale * smooth / static_cast<A>(vocabulary),
          .at_target = -scale * (A(1) - smooth),
          .target = target};
}

template <typename T, int kVec>
__device__ __forceinline__ void write_zeros(T* x, int count) {
  const Sum<T> zeros[kVec] = {};
  for (int i = threadIdx.x * kVec; i < count; i += kThreads * kVec) store<kVec>(x + i, zeros);
}

/// By one thread of those that work on the row.
template <typename A>
__device__ __forceinline__ void write_losses(const CrossEntropyLoop& c, std::int64_t row, const Totals<A>& all, A lse,
                                             A hit) {
  const A smoothing = static_cast<A>(c.label_smoothing), per_class = smoothing / static_cast<A>(c.vocabulary);
  static_cast<A*>(c.losses)[row] = smoothing == 0 ? lse - hit : lse - (A(1) - smoothing) * hit - per_class * all.logits;
  if (c.z_losses != nullptr) static_cast<A*>(c.z_losses)[row] = static_cast<A>(c.z_loss) * lse * lse;
  if (c.lse != nullptr) static_cast<A*>(c.lse)[row] = lse;
}
template <typename A>
__device__ __forceinline__ void write_no_losses(const CrossEntropyLoop& c, std::int64_t row) {
  static_cast<A*>(c.losses)[row] = 0;
  if (c.z_losses != nullptr) static_cast<A*>(c.z_losses)[row] = 0;
  if (c.lse != nullptr) static_cast<A*>(c.lse)[row] = 0;
}

/// A target that is no class makes the loss no number, which stops the run.
template <typename T>
__device__ __forceinline__ Sum<T> hit_of(const T* x, std::int64_t target, std::int64_t classes) {
  return target >= 0 && target < classes ? widen(x[target]) : Sum<T>(NAN);
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) cross_entropy_rows(const CrossEntropyLoop c) {
  using A = Sum<T>;
  const std::int64_t row = blockIdx.x, target = c.targets[row];
  T* x = row_of<T>(c.logits, row, c.stride);
  const int count = static_cast<int>(c.vocabulary);
  if (target == c.ignore) {
    if (c.scale != nullptr) write_zeros<T, kVec>(x, count);
    if (threadIdx.x == 0) write_no_losses<A>(c, row);
    return;
  }
  const A hit = threadIdx.x == 0 ? hit_of(x, target, c.vocabulary) : A(0);
  const Totals<A> all = read_row<T, kVec>(x, count, c.label_smoothing != 0);
  const A lse = all.lse();
  if (threadIdx.x == 0) write_losses(c, row, all, lse, hit);
  if (c.scale == nullptr) return;
  const A scale = static_cast<const A*>(c.scale)[row];
  slope_of(scale, lse, c.label_smoothing, c.z_loss, c.vocabulary, target).template write<T, kVec>(x, x, count);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TRIREME_CLUSTERS 1
#endif

/// The blocks of a cluster take neighbouring pieces of a row. Every thread reads only what it has fetched itself, so
/// nobody waits for the block while pieces arrive.
template <typename T>
__global__ void __launch_bounds__(kThreads, 2) cross_entropy_held(const CrossEntropyLoop c, int piece) {
#ifdef TRIREME_CLUSTERS
  using A = Sum<T>;
  constexpr int kVec = kWide<T>;
  extern __shared__ __align__(16) char raw[];
  T* held = reinterpret_cast<T*>(raw);
  __shared__ A mine_for_others[3];
  const cg::cluster_group cluster = cg::this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks()), block = static_cast<int>(cluster.block_rank());
  const std::int64_t row = blockIdx.x / blocks, target = c.targets[row];
  const std::int64_t first = static_cast<std::int64_t>(block) * piece;
  const int count = static_cast<int>(min(static_cast<std::int64_t>(piece), c.vocabulary - first));
  T* x = row_of<T>(c.logits, row, c.stride) + first;
  if (target == c.ignore) {
    if (c.scale != nullptr) write_zeros<T, kVec>(x, count);
    if (threadIdx.x == 0 && block == 0) write_no_losses<A>(c, row);
    return;
  }
  constexpr int kStep = kThreads * kVec;
  const int turns = (piece + kStep - 1) / kStep, stage = (turns + kStages - 1) / kStages * kStep;
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    const int end = min(count, (s + 1) * stage);
    for (int i = s * stage + threadIdx.x * kVec; i < end; i += kStep) fetch16(held + i, x + i);
    close_fetches();
  }
  const A hit = threadIdx.x == 0 && block == 0 ? hit_of(x, target, c.vocabulary) : A(0);
  const bool with_logits = c.label_smoothing != 0;
  Totals<A> mine;
  const auto add_stage = [&](int s) {
    const int end = min(count, (s + 1) * stage);
    for (int i = s * stage + threadIdx.x * kVec; i < end; i += kStep) {
      A v[kVec];
      load<kVec>(held + i, v);
      mine.add(v, with_logits);
    }
  };
  static_assert(kStages == 4);
  wait_fetches<3>(), add_stage(0);
  wait_fetches<2>(), add_stage(1);
  wait_fetches<1>(), add_stage(2);
  wait_fetches<0>(), add_stage(3);
  Totals<A> all = over_block(mine, with_logits);
  if (blocks > 1) {
    if (threadIdx.x == 0) {
      mine_for_others[0] = all.largest, mine_for_others[1] = all.sum, mine_for_others[2] = all.logits;
    }
    cluster.sync();
    all = Totals<A>();
    for (int other = 0; other < blocks; ++other) {
      const A* theirs = cluster.map_shared_rank(&mine_for_others[0], other);
      Totals<A> part;
      part.largest = theirs[0], part.sum = theirs[1], part.logits = theirs[2];
      all.add(part);
    }
    cluster.sync();  // nobody leaves while others read
  }
  const A lse = all.lse();
  if (threadIdx.x == 0 && block == 0) write_losses(c, row, all, lse, hit);
  if (c.scale == nullptr) return;
  const A scale = static_cast<const A*>(c.scale)[row];
  slope_of(scale, lse, c.label_smoothing, c.z_loss, c.vocabulary, target - first)
      .template write<T, kVec>(x, held, count);
#endif
}

/// Null where rows are to be held, with how; otherwise they are not.
struct Holding {
  int blocks = 0, piece = 0;
};
Holding holding_of(const CrossEntropyLoop& c, int size, int wide) {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major < 9) return {};
  for (std::int64_t blocks = 1; blocks <= kMostBlocks; blocks *= 2) {
    const std::int64_t piece = divided_up(divided_up(c.vocabulary, blocks), wide) * wide;
    if (piece * size <= kMostHeld) return {static_cast<int>(blocks), static_cast<int>(piece)};
  }
  return {};
}

template <typename T>
CudaError launch_held(const CrossEntropyLoop& c, const Holding& holding, std::int64_t rows, CudaStream stream) {
  const int bytes = holding.piece * static_cast<int>(sizeof(T));
  const auto kernel = cross_entropy_held<T>;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess)
    return launched();
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * holding.blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = to_stream(stream);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(holding.blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, c, holding.piece);
  return launched();
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) slice_value_rows(const CrossEntropySlice c) {
  using A = Sum<T>;
  const std::int64_t row = blockIdx.x, target = c.targets[row];
  const T* x = row_of<T>(c.logits, row, c.stride);
  const Totals<A> all = read_row<T, kVec>(x, static_cast<int>(c.classes), c.sums != nullptr);
  if (threadIdx.x != 0) return;
  static_cast<A*>(c.lse)[row] = all.lse();
  static_cast<A*>(c.hits)[row] = target >= 0 && target < c.classes ? widen(x[target]) : A(0);
  if (c.sums != nullptr) static_cast<A*>(c.sums)[row] = all.logits;
}

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) slice_gradient_rows(const CrossEntropySlice c) {
  using A = Sum<T>;
  const std::int64_t row = blockIdx.x;
  T* x = row_of<T>(c.logits, row, c.stride);
  const int count = static_cast<int>(c.classes);
  const A scale = static_cast<const A*>(c.scale)[row], lse = static_cast<const A*>(c.lse)[row];
  if (scale == 0) return write_zeros<T, kVec>(x, count);
  slope_of(scale, lse, c.label_smoothing, c.z_loss, c.vocabulary, c.targets[row]).template write<T, kVec>(x, x, count);
}

constexpr std::int64_t kMostClasses = 2147483647 / 2;

}  // namespace

CudaError cross_entropy(const CrossEntropyLoop& c, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0) return nullptr;
  if (c.vocabulary > kMostClasses) return "more than 2^30 classes";
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const bool wide = wide_rows(c.logits, c.stride, c.vocabulary, sizeof(T));
    // Without gradients a row is read once in either case.
    if (wide && c.scale != nullptr) {
      if (const Holding holding = holding_of(c, sizeof(T), kWide<T>); holding.blocks > 0) {
        return launch_held<T>(c, holding, rows, stream);
      }
    }
    const auto kernel = wide ? cross_entropy_rows<T, kWide<T>> : cross_entropy_rows<T, 1>;
    kernel<<<static_cast<unsigned>(rows), kThreads, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

CudaError slice_values(const CrossEntropySlice& c, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0) return nullptr;
  if (c.classes > kMostClasses) return "more than 2^30 classes";
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const auto kernel =
        wide_rows(c.logits, c.stride, c.classes, sizeof(T)) ? slice_value_rows<T, kWide<T>> : slice_value_rows<T, 1>;
    kernel<<<static_cast<unsigned>(rows), kThreads, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

CudaError slice_gradients(const CrossEntropySlice& c, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0) return nullptr;
  if (c.classes > kMostClasses) return "more than 2^30 classes";
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const auto kernel = wide_rows(c.logits, c.stride, c.classes, sizeof(T)) ? slice_gradient_rows<T, kWide<T>>
                                                                            : slice_gradient_rows<T, 1>;
    kernel<<<static_cast<unsigned>(rows), kThreads, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
