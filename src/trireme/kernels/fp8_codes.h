// kernels/fp8_codes.h -- the numbers of FP8 (Micikevicius et al. 2022): what a code stands for, and the code of a
// float.
//
// E4M3 has bias 7, no Inf and one NaN for each sign, so that it reaches 448; E5M2 has bias 15 and IEEE's Inf and NaN.
// Encoding rounds to nearest even and saturates, as a GPU's conversion with satfinite does: what lies beyond the
// largest number, Inf included, becomes it; NaN stays NaN.
// Depends on: nothing.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace trireme::kernels {

enum class Fp8Format : std::uint8_t { kE4m3, kE5m2 };

constexpr float fp8_largest(Fp8Format format) { return format == Fp8Format::kE4m3 ? 448.0F : 57344.0F; }

inline float decode_fp8(std::uint8_t code, Fp8Format format) {
  const bool e4m3 = format == Fp8Format::kE4m3;
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, magnitude = code & 0x7F;
  const int exponent = magnitude >> mantissa_bits, mantissa = magnitude & ((1 << mantissa_bits) - 1);
  float value = 0;
  if (e4m3 ? magnitude == 0x7F : magnitude > 0x7C) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (!e4m3 && magnitude == 0x7C) {
    value = std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
  }
  return (code & 0x80) != 0 ? -value : value;
}

inline std::uint8_t encode_fp8(float value, Fp8Format format) {
  const bool e4m3 = format == Fp8Format::kE4m3;
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return 0x7F;
  const float size = std::bit_cast<float>(magnitude);
  if (size >= fp8_largest(format)) return static_cast<std::uint8_t>(sign | (e4m3 ? 0x7E : 0x7B));
  const int lowest_exponent = 1 - bias;  // of normal numbers
  if (size < std::bit_cast<float>(static_cast<std::uint32_t>(127 + lowest_exponent) << 23)) {
    // Subnormal: multiples of the smallest, the highest of which is the first normal number.
    const float multiples =
        size * std::bit_cast<float>(static_cast<std::uint32_t>(127 - lowest_exponent + mantissa_bits) << 23);
    return static_cast<std::uint8_t>(sign | static_cast<std::uint32_t>(std::lrint(multiples)));
  }
  // Half of the last kept place, less one where the kept number is even; a carry goes into the exponent as it should.
  const int dropped = 23 - mantissa_bits;
  const std::uint32_t rounded = magnitude + ((1U << (dropped - 1)) - 1) + (magnitude >> dropped & 1);
  return static_cast<std::uint8_t>(sign |
                                   ((rounded >> dropped) - (static_cast<std::uint32_t>(127 - bias) << mantissa_bits)));
}

}  // namespace trireme::kernels
