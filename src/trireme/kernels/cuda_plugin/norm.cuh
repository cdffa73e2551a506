// kernels/cuda_plugin/norm.cuh -- what both ways through a norm share: weights of any type, rows shared out to threads.
#pragma once

#include <type_traits>

#include "trireme/kernels/cuda_plugin/common.cuh"

namespace trireme::kernels::gpu {
namespace {

template <int kVec, typename A>
__device__ __forceinline__ void load_weight(const CudaNormWeights& w, std::int64_t at, A (&to)[kVec]) {
  if (w.weight == nullptr) {
#pragma unroll
    for (int k = 0; k < kVec; ++k) to[k] = 1;
    return;
  }
  load_any<kVec>(w.weight, w.weight_element, at, to);
#pragma unroll
  for (int k = 0; k < kVec; ++k) to[k] += static_cast<A>(w.offset);
}
template <int kVec, typename A>
__device__ __forceinline__ void load_bias(const CudaNormWeights& w, std::int64_t at, A (&to)[kVec]) {
  if (w.bias == nullptr) {
#pragma unroll
    for (int k = 0; k < kVec; ++k) to[k] = 0;
    return;
  }
  load_any<kVec>(w.bias, w.bias_element, at, to);
}

inline bool aligned(const CudaNormWeights& w) {
  return reinterpret_cast<std::uintptr_t>(w.weight) % 16 == 0 && reinterpret_cast<std::uintptr_t>(w.bias) % 16 == 0;
}

/// body(threads, rows, hold) with how a row of so many vectors is shared out.
template <int kThreads, int kRows, int kHold, typename Body>
bool shared_out(Body&& body) {
  body(std::integral_constant<int, kThreads>(), std::integral_constant<int, kRows>(),
       std::integral_constant<int, kHold>());
  return true;
}

/// False where a row does not fit registers. Narrow types, which models compute with, have finer steps, each the
/// fastest of some that were measured.
template <typename T, typename Body>
bool by_width(std::int64_t vectors, Body&& body) {
  if constexpr (sizeof(T) == 2) {
    if (vectors <= 32) return shared_out<32, 4, 1>(body);
    if (vectors <= 64) return shared_out<32, 4, 2>(body);
    if (vectors <= 96) return shared_out<32, 4, 3>(body);
    if (vectors <= 128) return shared_out<32, 4, 4>(body);
    if (vectors <= 256) return shared_out<128, 1, 2>(body);
    if (vectors <= 512) return shared_out<256, 1, 2>(body);
  } else if (vectors <= 128) {
    return shared_out<32, 4, 4>(body);
  }
  if (vectors <= 1024) return shared_out<256, 1, 4>(body);
  return false;
}

}  // namespace
}  // namespace trireme::kernels::gpu
