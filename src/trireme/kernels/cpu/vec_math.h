// kernels/cpu/vec_math.h -- exponential, logistic and normal distribution functions over the lanes of vec.h.
//
// For Floats: polynomials fitted to the smallest largest relative error (Remez), errors stated at each; tested against
// double. For Doubles: the C library.
#pragma once

#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

TRIREME_INLINE Floats polynomial(Floats, float c) { return Floats::all(c); }
template <typename... Rest>
TRIREME_INLINE Floats polynomial(Floats x, float c, Rest... rest) {
  return multiply_add(polynomial(x, rest...), x, Floats::all(c));
}

/// e^x within 1.5 units in the last place (2 where the set has no fused multiply-add); 0, infinity and NaN where
/// they belong, subnormal results included.
TRIREME_INLINE Floats exponential(Floats x) {
  x = at_least(Floats::all(-105.0f), at_most(Floats::all(90.0f), x));
  const Floats n = nearest(x * Floats::all(1.44269504f));
  // ln 2 in two parts; the first has few bits, so that its GEMM with n is exact.
  Floats r = multiply_add(n, Floats::all(-0x1.62e4p-1f), x);
  r = multiply_add(n, Floats::all(-0x1.7f7d1cp-20f), r);
  // (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2: 7.5e-9.
  const Floats p =
      polynomial(r, 0.499999981451f, 0.166665794703f, 0.0416678046225f, 0.00836292131313f, 0.00138218698865f);
  const Floats one = Floats::all(1);
  return times_two_to(multiply_add(r * r, p, r) + one, n);
}
TRIREME_INLINE Doubles exponential(Doubles x) { return {__builtin_exp(x.v)}; }

/// 2^t for t already scaled: cheaper than exponential(), within 2 units in the last place.
TRIREME_INLINE Floats two_to(Floats t) {
#if defined(__AVX512F__)
  // (2^r - 1) / r for 0 <= r <= 1: 8.3e-8 of 2^r.
  const Floats r = above_floor(t);
  const Floats p = polynomial(r, 0.6931513118f, 0.240164450221f, 0.0557999128634f, 0.00901703064514f, 0.0018671299269f);
  return times_two_to(multiply_add(p, r, Floats::all(1)), t);
#else
  t = at_least(Floats::all(-151.0f), at_most(Floats::all(129.0f), t));
  const Floats n = nearest(t), r = t - n;
  // (2^r - 1) / r for |r| <= 1/2: 3.8e-9.
  const Floats p = polynomial(r, 0.693147187683f, 0.240226485153f, 0.0555035814526f, 0.00961844366196f,
                              0.00133904795235f, 0.000153374485113f);
  return times_two_to(multiply_add(p, r, Floats::all(1)), n);
#endif
}
TRIREME_INLINE Doubles two_to(Doubles t) { return {__builtin_exp2(t.v)}; }

/// The normal distribution: its integral up to x and its density there.
template <typename V>
struct Normal {
  V cumulative, density;
};
/// Relative error within 4e-7, also far down the left tail, where 1 + erf would have cancelled.
TRIREME_INLINE Normal<Floats> normal(Floats x) {
  // e^(-a^2/2) for a = |x|; a^2's rounding would cost a^2/2 units of the result, so it is put back to first order.
  const Floats a = at_most(Floats::all(16), absolute(x)), square = a * a, half = Floats::all(0.5f);
  const Floats lost = square_error(a, square) * half;
  Floats e = exponential(Floats::all(-0.5f) * square);
  e = e - e * lost;
  // P(-a) / e^(-a^2/2) = t q(t), t = 1 / (1 + 0.35 a), for 0 <= a <= 16: 3.2e-8.
  const Floats one = Floats::all(1), t = one / multiply_add(Floats::all(0.35f), a, one);
  const Floats q = polynomial(t, 0.139621246817f, 0.139864530789f, 0.11981413405f, 0.105580020142f, -0.0232758032542f,
                              0.159409826451f, -0.255916300991f, 0.144067628674f, -0.0291652986883f);
  const Floats tail = e * (t * q);
  return {choose(above(x, Floats::all(0)), one - tail, tail), e * Floats::all(0.398942280f)};
}
TRIREME_INLINE Normal<Doubles> normal(Doubles x) {
  return {{0.5 * __builtin_erfc(-0.70710678118654752440 * x.v)},
          {0.39894228040143267794 * __builtin_exp(-0.5 * x.v * x.v)}};
}

}  // namespace
}  // namespace trireme::kernels
