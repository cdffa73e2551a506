// kernels/cpu/activation_math.h -- activations and their slopes, in lanes: what activation_body.h and
// expert_rows_body.h share.
#pragma once

#include "trireme/kernels/cpu/vec_math.h"

namespace trireme::kernels {
namespace {

/// f(x) and f'(x).
template <typename V>
struct Both {
  V value, slope;
};

struct Relu {
  template <typename V>
  TRIREME_INLINE static V value(V x) {
    return at_least(V::all(0), x);
  }
  template <typename V>
  TRIREME_INLINE static Both<V> both(V x) {
    // A NaN takes the second branch of "0 >= x" and so lets the gradient pass, as PyTorch's does.
    return {value(x), choose(not_above(x, V::all(0)), V::all(0), V::all(1))};
  }
};

struct Gelu {
  template <typename V>
  TRIREME_INLINE static V value(V x) {
    return x * normal(x).cumulative;
  }
  template <typename V>
  TRIREME_INLINE static Both<V> both(V x) {
    const Normal<V> p = normal(x);
    return {x * p.cumulative, multiply_add(x, p.density, p.cumulative)};
  }
};

/// x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3) is x / (1 + e^-2u): no cancellation for negative x, and no
/// tanh.
struct GeluTanh {
  static constexpr double kMinusTwoLog2e = -2.8853900817779268, kRoot = 0.79788456080286536, kCube = 0.044715;
  template <typename V>
  TRIREME_INLINE static V logistic(V x) {
    using A = typename V::Scalar;
    constexpr A linear = A(kMinusTwoLog2e * kRoot), cubic = A(kMinusTwoLog2e * kRoot * kCube);
    const V exponent = x * multiply_add(x * x, V::all(cubic), V::all(linear));
    return V::all(1) / (V::all(1) + two_to(exponent));
  }
  template <typename V>
  TRIREME_INLINE static V value(V x) {
    return x * logistic(x);
  }
  template <typename V>
  TRIREME_INLINE static Both<V> both(V x) {
    using A = typename V::Scalar;
    const V s = logistic(x);
    // Beyond 12 the second term is 0; there x^3 must not make it infinity times 0.
    const V near = at_least(V::all(-12), at_most(V::all(12), x));
    const V slope_2u = multiply_add(near * near, V::all(A(6 * kRoot * kCube)), V::all(A(2 * kRoot)));
    return {x * s, multiply_add(near * slope_2u, s * (V::all(1) - s), s)};
  }
};

struct Silu {
  template <typename V>
  TRIREME_INLINE static V logistic(V x) {
    constexpr double kMinusLog2e = -1.4426950408889634;
    return V::all(1) / (V::all(1) + two_to(x * V::all(typename V::Scalar(kMinusLog2e))));
  }
  template <typename V>
  TRIREME_INLINE static V value(V x) {
    return x * logistic(x);
  }
  template <typename V>
  TRIREME_INLINE static Both<V> both(V x) {
    const V s = logistic(x), y = x * s;
    return {y, multiply_add(y, V::all(1) - s, s)};
  }
};

}  // namespace
}  // namespace trireme::kernels
