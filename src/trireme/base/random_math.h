// base/random_math.h -- the logarithm, sine and cosine behind normal draws, from exactly rounded operations only.
//
// std::log and friends differ between libraries in the last bit, and then a run could not be repeated on another
// machine. These have no branches and no calls, so that the compiler runs them in vector lanes. Good to 2 units in the
// last place or so, on the domains they are used for.
// Depends on: std.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace trireme::random_math {

/// Natural logarithm for normal numbers x > 0. x = m 2^e with m in [sqrt(1/2), sqrt(2)), and
/// log m = 2 atanh((m-1)/(m+1)), whose series in s^2 <= 0.0295 has converged after eleven terms.
[[gnu::always_inline]] constexpr inline double log(double x) {
  constexpr std::uint64_t kOne = 0x3FF0000000000000, kHalfRoot = 0x3FE6A09E667F3BCC;  // 1, just below sqrt(1/2)
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t shifted = bits - kHalfRoot;
  // The exponent as a double without an integer conversion, which SSE and AVX2 lack for 64 bits: 2^52 + n has n in
  // its low bits. 1100 keeps n positive; it is taken off again, exactly.
  const std::uint64_t exponent = ((shifted >> 52) + 1100) & 0xFFF;
  const double e = std::bit_cast<double>(0x4330000000000000 | exponent) - (4503599627370496.0 + 1100.0);
  const double m = std::bit_cast<double>((shifted & 0x000FFFFFFFFFFFFF) + kHalfRoot);
  static_assert(kOne > kHalfRoot);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double series = 1.0 / 23.0;
  series = series * z + 1.0 / 21.0;
  series = series * z + 1.0 / 19.0;
  series = series * z + 1.0 / 17.0;
  series = series * z + 1.0 / 15.0;
  series = series * z + 1.0 / 13.0;
  series = series * z + 1.0 / 11.0;
  series = series * z + 1.0 / 9.0;
  series = series * z + 1.0 / 7.0;
  series = series * z + 1.0 / 5.0;
  series = series * z + 1.0 / 3.0;
  const double log_m = 2.0 * s + 2.0 * s * (z * series);
  // ln 2 in two parts: the first has 20 trailing zero bits, so that its product with e is exact.
  return e * 0x1.62e42fee00000p-1 + (e * 0x1.a39ef35793c76p-33 + log_m);
}

/// In place, exactly rounded. By hand, as std::sqrt may set errno and therefore stays out of vector lanes.
[[gnu::always_inline]] inline void square_roots(double* values, std::size_t count) {
  std::size_t i = 0;
#if defined(__SSE2__)
  for (; i + 2 <= count; i += 2) _mm_storeu_pd(values + i, _mm_sqrt_pd(_mm_loadu_pd(values + i)));
#endif
  for (; i < count; ++i) values[i] = std::sqrt(values[i]);
}

struct SinCos {
  double sin, cos;
};

/// Sine and cosine of a turn's fraction t in [0, 1). The angle is folded to [-pi/4, pi/4], where the Taylor series have
/// converged after eight terms, and the quadrant put back by choosing and negating.
[[gnu::always_inline]] constexpr inline SinCos sin_cos_of_turns(double t) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to a whole number in the low bits
  const double quarters = t * 4.0;
  const double shifted = quarters + kRound;
  const std::uint64_t quadrant = std::bit_cast<std::uint64_t>(shifted);
  const double x = (quarters - (shifted - kRound)) * 1.5707963267948966, z = x * x;
  double s = -1.0 / 1307674368000.0;
  s = s * z + 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  s = x + x * (z * s);
  double c = 1.0 / 20922789888000.0;
  c = c * z - 1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = 1.0 - 0.5 * z + (z * z) * c;
  const std::uint64_t odd = 0 - (quadrant & 1);  // all ones in odd quadrants, where sine and cosine trade places
  const std::uint64_t sin_bits = std::bit_cast<std::uint64_t>(s), cos_bits = std::bit_cast<std::uint64_t>(c);
  const std::uint64_t swap = (sin_bits ^ cos_bits) & odd;
  const std::uint64_t sin_sign = (quadrant & 2) << 62, cos_sign = ((quadrant + 1) & 2) << 62;
  return {std::bit_cast<double>((sin_bits ^ swap) ^ sin_sign), std::bit_cast<double>((cos_bits ^ swap) ^ cos_sign)};
}

}  // namespace trireme::random_math
