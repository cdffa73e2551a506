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

/// Signs of four neighbours a lane, pack after pack: nibble r of a lane's word is of its pack r. Among eight lanes,
/// lane l gets the word of pack l, whose nibble n is lane n's: three shuffles for eight packs. All lanes call it.
__device__ __forceinline__ std::uint32_t transpose_nibbles(std::uint32_t word) {
#pragma unroll
  for (int step = 4; step > 0; step /= 2) {
    const std::uint32_t low = step == 4 ? 0x0000ffffu : step == 2 ? 0x00ff00ffu : 0x0f0f0f0fu;
    const int shift = 4 * step;
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, word, step);
    word = (threadIdx.x & step) != 0 ? (word & ~low) | (other >> shift & low) : (word & low) | (other & low) << shift;
  }
  return word;
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
