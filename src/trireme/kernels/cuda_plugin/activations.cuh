// kernels/cuda_plugin/activations.cuh -- the activations' values and slopes, as cpu/activation_body.h has them.
#pragma once

#include "trireme/kernels/cuda_plugin/common.cuh"

namespace trireme::kernels::gpu {

template <typename A>
struct Both {
  A value, slope;
};

struct Relu {
  template <typename A>
  __device__ __forceinline__ static A value(A x) {
    return x <= A(0) ? A(0) : x;
  }
  template <typename A>
  __device__ __forceinline__ static Both<A> both(A x) {
    return {value(x), x <= A(0) ? A(0) : A(1)};
  }
};

struct Gelu {
  template <typename A>
  __device__ __forceinline__ static A value(A x) {
    return x * (A(0.5) * erfc(A(-0.70710678118654752440) * x));
  }
  template <typename A>
  __device__ __forceinline__ static Both<A> both(A x) {
    const A cumulative = A(0.5) * erfc(A(-0.70710678118654752440) * x);
    return {x * cumulative, cumulative + x * A(0.39894228040143267794) * exp(A(-0.5) * x * x)};
  }
};

/// x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3) is x / (1 + e^-2u).
struct GeluTanh {
  static constexpr double kRoot = 0.79788456080286536, kCube = 0.044715;
  template <typename A>
  __device__ __forceinline__ static A logistic(A x) {
    return fast_divide(A(1), A(1) + fast_exp(x * (A(-2 * kRoot) + A(-2 * kRoot * kCube) * x * x)));
  }
  template <typename A>
  __device__ __forceinline__ static A value(A x) {
    return x * logistic(x);
  }
  template <typename A>
  __device__ __forceinline__ static Both<A> both(A x) {
    const A s = logistic(x);
    // Beyond 12 the second term is 0; there x^3 must not make it infinity times 0.
    const A near = max(A(-12), min(A(12), x));
    const A slope_2u = A(2 * kRoot) + A(6 * kRoot * kCube) * near * near;
    return {x * s, s + near * slope_2u * (s * (A(1) - s))};
  }
};

struct Silu {
  template <typename A>
  __device__ __forceinline__ static A logistic(A x) {
    return fast_divide(A(1), A(1) + fast_exp(-x));
  }
  template <typename A>
  __device__ __forceinline__ static A value(A x) {
    return x * logistic(x);
  }
  template <typename A>
  __device__ __forceinline__ static Both<A> both(A x) {
    const A s = logistic(x), y = x * s;
    return {y, s + y * (A(1) - s)};
  }
};

/// Vectors of x (with the bias, where there is one) and dy become dy f'(x) and f(x).
template <typename F, int kVec, typename T>
__device__ __forceinline__ void slopes(const ActivationLoop& c, std::int64_t column, const Pack<T, kVec>& x,
                                       const Pack<T, kVec>& dy, Sum<T> (&d)[kVec], Sum<T> (&value)[kVec]) {
#pragma unroll
  for (int k = 0; k < kVec; ++k) {
    value[k] = widen(x.v[k]);
    d[k] = widen(dy.v[k]);
  }
  if (c.bias != nullptr) {
    Sum<T> bias[kVec];
    load<kVec>(static_cast<const T*>(c.bias) + column, bias);
#pragma unroll
    for (int k = 0; k < kVec; ++k) value[k] += bias[k];
  }
#pragma unroll
  for (int k = 0; k < kVec; ++k) {
    const Both<Sum<T>> f = F::both(value[k]);
    d[k] *= f.slope;
    value[k] = f.value;
  }
}

/// Whether all of a backward pass's rows can be moved in 16 bytes at a time.
inline bool wide_backward(const ActivationLoop& c, int size) {
  return wide_rows(c.x, c.x_stride, c.width, size) && wide_rows(c.dy, c.dy_stride, c.width, size) &&
         wide_rows(c.out, c.out_stride, c.width, size) && wide_rows(c.y, c.y_stride, c.width, size) &&
         wide_rows(c.bias, 0, c.width, size);
}

/// body(F()) for the number of an Activation.
template <typename Body>
CudaError by_kind(int kind, Body&& body) {
  switch (kind) {
    case 0:
      return body(Relu());
    case 1:
      return body(Gelu());
    case 2:
      return body(GeluTanh());
    case 3:
      return body(Silu());
    default:
      return "an activation that no kernel has";
  }
}

}  // namespace trireme::kernels::gpu
