// kernels/cpu/attention_convert.h -- elements of tensors to what is computed with, and back, singly and by the vector.
//
// Depends on: attention_vector.h.
#pragma once

#include "trireme/kernels/cpu/attention_vector.h"

namespace trireme::kernels::cpu {
namespace {

struct Half {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};

TRIREME_INLINE std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
TRIREME_INLINE float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

TRIREME_INLINE float widen(float x) { return x; }
TRIREME_INLINE double widen(double x) { return x; }
TRIREME_INLINE float widen(Bfloat16 x) { return float_of(std::uint32_t{x.bits} << 16); }
TRIREME_INLINE float widen(Half x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x400u) return float_of(sign | ((rest + (112u << 10)) << 13));
  return float_of(sign | bits_of(static_cast<float>(rest) * 0x1p-24f));
#endif
}

TRIREME_INLINE void narrow(float x, float& to) { to = x; }
TRIREME_INLINE void narrow(double x, double& to) { to = x; }
TRIREME_INLINE void narrow(float x, Bfloat16& to) {
  const std::uint32_t bits = bits_of(x), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // A NaN whose payload sits in the low bits would round to infinity: keep it a NaN.
  to.bits = static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? ((bits >> 16) | 0x40u) : rounded);
}
TRIREME_INLINE void narrow(float x, Half& to) {
#if defined(__F16C__)
  to.bits = static_cast<std::uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#else
  const std::uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  std::uint32_t out;
  if (rest > 0x7f800000u) {
    out = 0x7e00u;
  } else if (rest >= 0x477ff000u) {  // 65520 and up round to infinity
    out = 0x7c00u;
  } else if (rest >= 0x38800000u) {  // normal in half precision
    out = (rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  } else {  // adding 0.5 makes the hardware round the subnormal's last bit to even
    out = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;
  }
  to.bits = static_cast<std::uint16_t>(sign | out);
#endif
}

// By the vector, at any address.

typedef std::uint16_t Uint16Vector __attribute__((vector_size(kVectorBytes / 2), may_alias));

TRIREME_INLINE FloatVector widen_vector(const float* from) {
  FloatVector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
TRIREME_INLINE DoubleVector widen_vector(const double* from) {
  DoubleVector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
TRIREME_INLINE FloatVector widen_vector(const Bfloat16* from) {
  Uint16Vector bits;
  std::memcpy(&bits, from, sizeof bits);
  return reinterpret_cast<FloatVector>(__builtin_convertvector(bits, Uint32Vector) << 16);
}
TRIREME_INLINE FloatVector widen_vector(const Half* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<FloatVector>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__F16C__)
  return reinterpret_cast<FloatVector>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  FloatVector v;
  for (int i = 0; i < kLanes<float>; ++i) v[i] = widen(from[i]);
  return v;
#endif
}

TRIREME_INLINE void narrow_vector(FloatVector v, float* to) { std::memcpy(to, &v, sizeof v); }
TRIREME_INLINE void narrow_vector(DoubleVector v, double* to) { std::memcpy(to, &v, sizeof v); }
TRIREME_INLINE void narrow_vector(FloatVector v, Bfloat16* to) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(reinterpret_cast<__m512>(v)));
#else
  const auto bits = reinterpret_cast<Uint32Vector>(v);
  const Uint32Vector rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Uint32Vector kept = (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded;
  const Uint16Vector half = __builtin_convertvector(kept, Uint16Vector);
  std::memcpy(to, &half, sizeof half);
#endif
}
TRIREME_INLINE void narrow_vector(FloatVector v, Half* to) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes<float>; ++i) narrow(v[i], to[i]);
#endif
}

/// Rows of a tensor lie far apart and are short, which hardware does not foresee: ask for them early.
constexpr std::int64_t kRowsAhead = 8;
template <int kWrite, typename Element>
TRIREME_INLINE void prefetch_row(const Element* row, std::int64_t size) {
  const char* const at = reinterpret_cast<const char*>(row);
  const std::int64_t bytes = size * static_cast<std::int64_t>(sizeof(Element));
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, kWrite);
  __builtin_prefetch(at + bytes - 1, kWrite);  // a row may begin in the middle of a line
}

/// to[i] = factor * from[i]; `from` is aligned.
template <typename Real, typename Element>
TRIREME_INLINE void write_row(Element* to, const Real* from, Real factor, std::int64_t size) {
  std::int64_t i = 0;
  for (; i + kLanes<Real> <= size; i += kLanes<Real>) narrow_vector(load(from + i) * factor, to + i);
  for (; i < size; ++i) narrow(from[i] * factor, to[i]);
}

}  // namespace
}  // namespace trireme::kernels::cpu
