// kernels/cuda_plugin/cross_entropy.cuh -- what the kernels of cross-entropy share: a row's sums, its slope, its
// losses.
#pragma once

#include "trireme/kernels/cuda_plugin/common.cuh"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 512;  // of a block that reads its row twice
constexpr std::int64_t kMostClasses = 2147483647 / 2;

constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;

/// Totals as they lie in shared memory.
template <typename A>
struct Part {
  A largest, sum;
};

/// A thread's, or a row's, logits in short. Powers are of 2, which the card has an instruction for.
template <typename A>
struct Totals {
  A largest = -INFINITY;  // of the logits times log2(e), rounded
  A sum = 0;              // of 2^(logit log2(e) - largest)
  A logits = 0;           // plain sum, where smoothing needs it

  Totals() = default;
  __device__ __forceinline__ Totals(const Part<A>& part, A with_logits)
      : largest(part.largest), sum(part.sum), logits(with_logits) {}

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
  /// With nothing but -inf so far, -inf - -inf would be NaN.
  __device__ static __forceinline__ A safe(A largest) { return largest == A(-INFINITY) ? A(0) : largest; }
  __device__ __forceinline__ A lse() const {
    return static_cast<A>((safe(largest) + log2(static_cast<double>(sum))) * kLn2);
  }
  /// log2(e) times that, at a quarter of the price: to a float's precision, as slopes are.
  __device__ __forceinline__ A lse2() const { return safe(largest) + log2(sum); }
};

/// Over the threads of a warp, the same on all of them.
template <typename A>
__device__ __forceinline__ Totals<A> over_warp(const Totals<A>& mine, bool with_logits) {
  Totals<A> all;
  all.largest = warp_max(mine.largest);
  const A shift = Totals<A>::safe(all.largest);
  all.sum = warp_sum(mine.largest == A(-INFINITY) ? A(0) : mine.sum * fast_exp2(mine.largest - shift));
  if (with_logits) all.logits = warp_sum(mine.logits);
  return all;
}

/// Over the threads of a block, the same on all of them.
template <int kThreads, typename A>
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
  return over_block<kThreads>(mine, with_logits);
}

/// x_j = e^(x_j - lse) share + flat, and more at the target. `from` may be a copy of `to`.
template <typename A>
struct Slope {
  A lse2, share, flat, at_target;
  std::int64_t target;

  __device__ __forceinline__ A of(A x) const { return fma(fast_exp2(fma(x, A(kLog2E), -lse2)), share, flat); }
  /// body(write) walks over this thread's numbers of `from`, and calls write(i) for the vector at i. The thread that
  /// has the target's vector writes it again, from what was there.
  template <int kThreads, int kVec, typename T, typename Body>
  __device__ __forceinline__ void write(T* to, const T* from, int count, Body&& body) const {
    const bool here = target >= 0 && target < count && target / kVec % kThreads == threadIdx.x;
    const A hit = here ? of(widen(from[target])) + at_target : A(0);
    body([&](int i) {
      A v[kVec];
      load<kVec>(from + i, v);
#pragma unroll
      for (int k = 0; k < kVec; ++k) v[k] = of(v[k]);
      store<kVec>(to + i, v);
    });
    if (here) to[target] = narrow<T>(hit);
  }
  template <int kThreads, int kVec, typename T>
  __device__ __forceinline__ void write(T* x, int count) const {
    write<kThreads, kVec>(x, x, count, [&](auto&& one) {
#pragma unroll 4
      for (int i = threadIdx.x * kVec; i < count; i += kThreads * kVec) one(i);
    });
  }
};

/// d/dx_j (loss + z lse^2) = p_j (1 + 2 z lse) - smoothing / classes - (1 - smoothing) [j is the target]
template <typename A>
__device__ __forceinline__ Slope<A> slope_of(A scale, A lse2, double smoothing, double z_loss, std::int64_t vocabulary,
                                             std::int64_t target) {
  const A smooth = static_cast<A>(smoothing);
  return {.lse2 = lse2,
          .share = scale * (A(1) + static_cast<A>(2 * kLn2 * z_loss) * lse2),
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
__device__ __forceinline__ void write_losses(const CrossEntropyLoop& c, std::int64_t row, const Totals<A>& all, A hit) {
  const A lse = all.lse();
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

/// A target that is no class makes the loss NaN, which stops the run.
template <typename T>
__device__ __forceinline__ Sum<T> hit_of(const T* x, std::int64_t target, std::int64_t classes) {
  return target >= 0 && target < classes ? widen(x[target]) : Sum<T>(NAN);
}

}  // namespace
}  // namespace trireme::kernels::gpu
