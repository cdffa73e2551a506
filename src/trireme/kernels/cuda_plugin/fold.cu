// What ranks that share a GPU exchange: copies, and sums (or GEMMs, minima, maxima) of all ranks' numbers.
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kThreads = 256;

/// 16-bit numbers are combined as floats; sums of signed integers wrap, which unsigned ones may do.
template <typename T>
struct Held {
  using Type = T;
};
template <>
struct Held<Bf16> {
  using Type = float;
};
template <>
struct Held<F16> {
  using Type = float;
};
template <>
struct Held<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct Held<std::int64_t> {
  using Type = std::uint64_t;
};

template <typename T>
__device__ __forceinline__ typename Held<T>::Type held(T x) {
  if constexpr (__is_same(T, Bf16) || __is_same(T, F16)) {
    return widen(x);
  } else {
    return static_cast<typename Held<T>::Type>(x);
  }
}

/// The smaller; of -0 and +0 the first, and a NaN or Inf wins: as comm/arithmetic has it.
template <typename T>
__device__ __forceinline__ T smaller(T a, T b) {
  if constexpr (__is_same(T, float) || __is_same(T, double)) {
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return signbit(a) ? a : b;
  }
  return b < a ? b : a;
}
template <typename T>
__device__ __forceinline__ T larger(T a, T b) {
  if constexpr (__is_same(T, float) || __is_same(T, double)) {
    if (a != a) return a;
    if (b != b) return b;
    if (a == b) return signbit(a) ? b : a;
  }
  return a < b ? b : a;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) fold_kernel(const CudaFold f) {
  using H = typename Held<T>::Type;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= f.count) return;
  const auto at = [&](int k) { return static_cast<const T*>(f.from[k])[i]; };
  H total = held(at(0));
  for (int k = 1; k < f.froms; ++k) {
    const T next = at(k);
    if (f.reduce == CudaFold::kSum) {
      total += held(next);
    } else if (f.reduce == CudaFold::kProduct) {
      total *= held(next);
    } else if constexpr (__is_same(H, float) || __is_same(H, double)) {
      total = f.reduce == CudaFold::kMin ? smaller(total, held(next)) : larger(total, held(next));
    } else {  // of integers, as what they are
      const T a = static_cast<T>(total);
      total = held(f.reduce == CudaFold::kMin ? smaller(a, next) : larger(a, next));
    }
  }
  T result;
  if constexpr (__is_same(H, float) || __is_same(H, double)) {
    result = narrow<T>(f.divisor == 1 ? total : total / static_cast<H>(f.divisor));
  } else {
    result = f.divisor == 1 ? static_cast<T>(total) : static_cast<T>(static_cast<T>(total) / static_cast<T>(f.divisor));
  }
  for (int k = 0; k < f.tos; ++k) static_cast<T*>(f.to[k])[i] = result;
}

template <typename T>
CudaError launch(const CudaFold& f, CudaStream stream) {
  const auto grid = static_cast<unsigned>(divided_up(f.count, kThreads));
  fold_kernel<T><<<grid, kThreads, 0, to_stream(stream)>>>(f);
  return launched();
}

}  // namespace

CudaError fold(const CudaFold& f, CudaStream stream) {
  if (f.count == 0) return nullptr;
  switch (f.type) {
    case CudaFold::kFloat:
      return launch<float>(f, stream);
    case CudaFold::kDouble:
      return launch<double>(f, stream);
    case CudaFold::kHalf:
      return launch<F16>(f, stream);
    case CudaFold::kBfloat16:
      return launch<Bf16>(f, stream);
    case CudaFold::kInt32:
      return launch<std::int32_t>(f, stream);
    case CudaFold::kInt64:
      return launch<std::int64_t>(f, stream);
    case CudaFold::kUint8:
      return launch<std::uint8_t>(f, stream);
  }
  return "an element type that ranks do not exchange";
}

}  // namespace trireme::kernels::gpu
