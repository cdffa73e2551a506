// Cross-entropy: a block takes a row of logits, reads it for the maximum and the sum, and again, from the second-level
// cache, for the gradient.
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 512;

template <typename T, int kVec>
__global__ void __launch_bounds__(kThreads) cross_entropy_rows(const CrossEntropyLoop c) {
  using A = Sum<T>;
  const A kLowest = -INFINITY;
  const std::int64_t row = blockIdx.x, target = c.targets[row];
  T* x = row_of<T>(c.logits, row, c.stride);
  const int count = static_cast<int>(c.vocabulary);
  A* losses = static_cast<A*>(c.losses);
  if (target == c.ignore) {
    if (c.scale != nullptr) {
      const A zeros[kVec] = {};
      for (int i = threadIdx.x * kVec; i < count; i += kThreads * kVec) store<kVec>(x + i, zeros);
    }
    if (threadIdx.x == 0) {
      losses[row] = 0;
      if (c.z_losses != nullptr) static_cast<A*>(c.z_losses)[row] = 0;
      if (c.lse != nullptr) static_cast<A*>(c.lse)[row] = 0;
    }
    return;
  }
  const A smoothing = static_cast<A>(c.label_smoothing), per_class = smoothing / static_cast<A>(c.vocabulary);
  A largest = kLowest, sum = 0, logits = 0;
#pragma unroll 4
  for (int i = threadIdx.x * kVec; i < count; i += kThreads * kVec) {
    A v[kVec];
    load<kVec>(x + i, v);
    A top = v[0];
#pragma unroll
    for (int k = 1; k < kVec; ++k) top = max(top, v[k]);
    if (top > largest) {
      sum *= fast_exp(largest - top);
      largest = top;
    }
    // With nothing but -inf so far, -inf - -inf would be no number.
    const A shift = largest == kLowest ? A(0) : largest;
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      sum += fast_exp(v[k] - shift);
    }
    if (smoothing != 0) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) logits += v[k];
    }
  }
  const A hit = target >= 0 && target < c.vocabulary ? widen(x[target]) : A(NAN);
  const A highest = max_over<kThreads>(largest);
  const A top = highest == kLowest ? A(0) : highest;
  const A total = sum_over<kThreads>(largest == kLowest ? A(0) : sum * fast_exp(largest - top));
  if (smoothing != 0) logits = sum_over<kThreads>(logits);
  const A lse = static_cast<A>(top + log(static_cast<double>(total)));
  if (threadIdx.x == 0) {
    // A target that is no class makes the loss no number, which stops the run.
    losses[row] = smoothing == 0 ? lse - hit : lse - (A(1) - smoothing) * hit - per_class * logits;
    if (c.z_losses != nullptr) static_cast<A*>(c.z_losses)[row] = static_cast<A>(c.z_loss) * lse * lse;
    if (c.lse != nullptr) static_cast<A*>(c.lse)[row] = lse;
  }
  if (c.scale == nullptr) return;
  // d/dx_j (loss + z lse^2) = p_j (1 + 2 z lse) - smoothing / classes - (1 - smoothing) [j is the target]
  const A scale = static_cast<const A*>(c.scale)[row];
  const A share = scale * (A(1) + A(2) * static_cast<A>(c.z_loss) * lse) / total;
  const A flat = -scale * per_class, at_target = -scale * (A(1) - smoothing);
#pragma unroll 4
  for (int i = threadIdx.x * kVec; i < count; i += kThreads * kVec) {
    A v[kVec];
    load<kVec>(x + i, v);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      v[k] = fast_exp(v[k] - top) * share + flat;
      if (i + k == target) v[k] += at_target;
    }
    store<kVec>(x + i, v);
  }
}

}  // namespace

CudaError cross_entropy(const CrossEntropyLoop& c, Element element, std::int64_t rows, CudaStream stream) {
  if (rows == 0) return nullptr;
  if (c.vocabulary > 2147483647 / 2) return "more than 2^30 classes";
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    const unsigned grid = static_cast<unsigned>(rows);
    const auto kernel = wide_rows(c.logits, c.stride, c.vocabulary, sizeof(T)) ? cross_entropy_rows<T, kWide<T>>
                                                                               : cross_entropy_rows<T, 1>;
    kernel<<<grid, kThreads, 0, to_stream(stream)>>>(c);
    return launched();
  });
}

}  // namespace trireme::kernels::gpu
