// Rows of activations into e4m3, for GEMMs of many rows with weights in e4m3.
#include <cuda_fp8.h>

#include "trireme/kernels/cuda_plugin/dependent.cuh"
#include "trireme/kernels/cuda_plugin/inference_functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kQuantiseThreads = 256;

/// Two numbers as e4m3, rounded to nearest even; beyond 448 they become 448.
__device__ __forceinline__ std::uint32_t two_codes(float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}

/// A thread block has a row, which it reads twice: the second time it is in the cache.
template <typename T>
__global__ void __launch_bounds__(kQuantiseThreads) quantise_row(const CudaQuantiseRows c) {
  let_next_start();
  wait_for_previous();
  const T* x = static_cast<const T*>(c.x) + static_cast<std::int64_t>(blockIdx.x) * c.stride;
  auto* const codes = static_cast<std::uint8_t*>(c.codes) + static_cast<std::int64_t>(blockIdx.x) * c.width;
  const int vectors = static_cast<int>(c.width / 8);
  float most = 0;
  for (int v = threadIdx.x; v < vectors; v += kQuantiseThreads) {
    const auto eight = load_raw<8>(x + 8 * v);
#pragma unroll
    for (int i = 0; i < 8; ++i) most = fmaxf(most, fabsf(eight[i]));
  }
  most = max_over<kQuantiseThreads>(most);
  const float scale = most > 0 ? most / 448.0F : 1.0F;
  if (threadIdx.x == 0) c.scales[blockIdx.x] = scale;
  for (int v = threadIdx.x; v < vectors; v += kQuantiseThreads) {
    const auto eight = load_raw<8>(x + 8 * v);
    std::uint32_t words[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      words[i] = two_codes(eight[4 * i] / scale, eight[4 * i + 1] / scale) |
                 two_codes(eight[4 * i + 2] / scale, eight[4 * i + 3] / scale) << 16;
    }
    store_words(codes + 8 * v, words);
  }
}

}  // namespace

CudaError quantise_rows(const CudaQuantiseRows& c, Element element, CudaStream stream) {
  if (c.rows == 0) return nullptr;
  if (c.width % 16 != 0) return "rows that are no multiple of 16 numbers";
  const dim3 grid(static_cast<unsigned>(c.rows)), threads(kQuantiseThreads);
  if (element == Element::kBfloat16) return launch_dependent(quantise_row<Bf16>, grid, threads, 0, stream, c);
  if (element == Element::kHalf) return launch_dependent(quantise_row<F16>, grid, threads, 0, stream, c);
  return "rows of another type than bf16 and fp16";
}

}  // namespace trireme::kernels::gpu
