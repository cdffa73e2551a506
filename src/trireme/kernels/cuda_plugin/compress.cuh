// kernels/cuda_plugin/compress.cuh -- what codes of gradients share: shares of owners, signs, sums of several numbers.
#pragma once

#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/compress_functions.h"

namespace trireme::kernels::gpu {

/// Whose share thing i of n is, and its number there.
struct OwnedPlace {
  std::int64_t owner, place;
};
__device__ __forceinline__ std::int64_t share_begin(std::int64_t n, std::int64_t owner, std::int64_t owners) {
  return n * owner / owners;
}
__device__ __forceinline__ OwnedPlace owned_place(std::int64_t i, std::int64_t n, std::int64_t owners) {
  if (owners == 1) return {0, i};
  std::int64_t owner = i * owners / n;
  while (owner + 1 < owners && share_begin(n, owner + 1, owners) <= i) ++owner;
  while (owner > 0 && share_begin(n, owner, owners) > i) --owner;
  return {owner, i - share_begin(n, owner, owners)};
}

/// Sums of kN numbers over the block, the same on all threads.
template <int kThreads, int kN>
__device__ __forceinline__ void sum_all(double (&x)[kN]) {
  __shared__ double parts[kThreads / 32][kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) x[n] = warp_sum(x[n]);
  __syncthreads();  // the last call's readers are done
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int n = 0; n < kN; ++n) parts[threadIdx.x / 32][n] = x[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    x[n] = parts[0][n];
#pragma unroll
    for (int i = 1; i < kThreads / 32; ++i) x[n] += parts[i][n];
  }
}

/// body(float()) or body(double()): gradients are of no other type.
template <typename Body>
CudaError by_wide_type(Element element, Body&& body) {
  if (element == Element::kFloat) return body(float());
  if (element == Element::kDouble) return body(double());
  return "gradients that are compressed are float or double";
}

template <typename T>
__device__ __forceinline__ T sizeless_abs(T x) {
  return x < 0 ? -x : x;
}

}  // namespace trireme::kernels::gpu
