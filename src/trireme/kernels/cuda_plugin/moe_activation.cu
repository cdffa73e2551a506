// Activations of experts, times the gates of their rows: a block takes a row. Backward writes the gradient of the
// pre-activation, the activation again for the weight's gradient, and the gate's gradient, in one pass.
#include "trireme/kernels/cuda_plugin/activations.cuh"
#include "trireme/kernels/cuda_plugin/moe_functions.h"

namespace trireme::kernels::gpu {
namespace {

constexpr int kExpertThreads = 128;

template <typename T, typename F, int kVec>
__global__ void __launch_bounds__(kExpertThreads) activate_rows(const CudaExpertActivation c) {
  const std::int64_t row = blockIdx.x, into = c.gated ? 2 * c.width : c.width;
  const T* pre = static_cast<const T*>(c.pre) + row * into;
  T* y = static_cast<T*>(c.y) + row * c.width;
  const Sum<T> gate = static_cast<const Sum<T>*>(c.gates)[row];
#pragma unroll 2
  for (std::int64_t i = threadIdx.x * kVec; i < c.width; i += kExpertThreads * kVec) {
    Sum<T> x[kVec];
    load<kVec>(pre + i, x);
#pragma unroll
    for (int k = 0; k < kVec; ++k) x[k] = gate * F::value(x[k]);
    if (c.gated) {
      Sum<T> up[kVec];
      load<kVec>(pre + c.width + i, up);
#pragma unroll
      for (int k = 0; k < kVec; ++k) x[k] *= up[k];
    }
    store<kVec>(y + i, x);
  }
}

template <typename T, typename F, int kVec>
__global__ void __launch_bounds__(kExpertThreads) activate_backward_rows(const CudaExpertActivation c) {
  const std::int64_t row = blockIdx.x, into = c.gated ? 2 * c.width : c.width;
  const T* pre = static_cast<const T*>(c.pre) + row * into;
  const T* dy = static_cast<const T*>(c.dy) + row * c.width;
  T* y = static_cast<T*>(c.y) + row * c.width;
  T* dpre = static_cast<T*>(c.dpre) + row * into;
  const Sum<T> gate = static_cast<const Sum<T>*>(c.gates)[row];
  Sum<T> dot = 0;
#pragma unroll 2
  for (std::int64_t i = threadIdx.x * kVec; i < c.width; i += kExpertThreads * kVec) {
    Sum<T> x[kVec], up[kVec], d[kVec], again[kVec];
    load<kVec>(pre + i, x);
    load<kVec>(dy + i, d);
    if (c.gated) load<kVec>(pre + c.width + i, up);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      const Both<Sum<T>> f = F::both(x[k]);
      const Sum<T> by = c.gated ? up[k] : Sum<T>(1), value = f.value * by;
      dot += d[k] * value;
      again[k] = gate * value;
      x[k] = gate * d[k] * by * f.slope;
      up[k] = gate * d[k] * f.value;
    }
    store<kVec>(dpre + i, x);
    if (c.gated) store<kVec>(dpre + c.width + i, up);
    store<kVec>(y + i, again);
  }
  dot = sum_over<kExpertThreads>(dot);
  if (threadIdx.x == 0) static_cast<Sum<T>*>(c.dgates)[row] = dot;
}

template <typename T>
bool wide_experts(const CudaExpertActivation& c) {
  const std::int64_t into = c.gated ? 2 * c.width : c.width;
  const auto even = [&](const void* data, std::int64_t stride) { return wide_rows(data, stride, c.width, sizeof(T)); };
  return even(c.pre, into) && even(c.dpre, into) && even(c.y, c.width) && even(c.dy, c.width);
}

}  // namespace

CudaError moe_activate(const CudaExpertActivation& c, int kind, Element element, CudaStream stream) {
  if (c.rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    return by_kind(kind, [&](auto function) {
      using F = decltype(function);
      const auto rows = static_cast<unsigned>(c.rows);
      if (wide_experts<T>(c)) {
        activate_rows<T, F, kWide<T>><<<rows, kExpertThreads, 0, to_stream(stream)>>>(c);
      } else {
        activate_rows<T, F, 1><<<rows, kExpertThreads, 0, to_stream(stream)>>>(c);
      }
      return launched();
    });
  });
}

CudaError moe_activate_backward(const CudaExpertActivation& c, int kind, Element element, CudaStream stream) {
  if (c.rows == 0 || c.width == 0) return nullptr;
  return by_type(element, [&](auto type) {
    using T = decltype(type);
    return by_kind(kind, [&](auto function) {
      using F = decltype(function);
      const auto rows = static_cast<unsigned>(c.rows);
      if (wide_experts<T>(c)) {
        activate_backward_rows<T, F, kWide<T>><<<rows, kExpertThreads, 0, to_stream(stream)>>>(c);
      } else {
        activate_backward_rows<T, F, 1><<<rows, kExpertThreads, 0, to_stream(stream)>>>(c);
      }
      return launched();
    });
  });
}

}  // namespace trireme::kernels::gpu
