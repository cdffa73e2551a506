// kernels/cpu/vec_avx512.h -- Floats in 512-bit registers; see vec.h.
#pragma once

namespace trireme::kernels {
namespace {

TRIREME_INLINE __mmask16 lanes_mask(First some) { return static_cast<__mmask16>((1u << some.count) - 1u); }

TRIREME_INLINE __m512 to_floats(__m256i bfloats) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bfloats), 16));
}
#if defined(__AVX512BF16__)
/// The machine's own rounding; it takes subnormal numbers for zero.
TRIREME_INLINE __m256i to_bfloats(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
#else
TRIREME_INLINE __m256i to_bfloats(__m512 x) {
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  // A NaN whose payload sits in the low bits would round to infinity: keep it a NaN.
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}
#endif

struct Floats {
  using Scalar = float;
  using Mask = __mmask16;
  static constexpr std::int64_t kLanes = 16;
  __m512 v;

  TRIREME_INLINE static Floats all(float x) { return {_mm512_set1_ps(x)}; }
  TRIREME_INLINE float first() const { return _mm512_cvtss_f32(v); }
  TRIREME_INLINE static Floats load(const float* p, All) { return {_mm512_loadu_ps(p)}; }
  TRIREME_INLINE static Floats load(const Bf16* p, All) {
    return {to_floats(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  TRIREME_INLINE static Floats load(const F16* p, All) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  TRIREME_INLINE static Floats load(const std::int8_t* p, All) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  TRIREME_INLINE static Floats load(const std::int8_t* p, First n) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes_mask(n), p)))};
  }
  TRIREME_INLINE static Floats load(const float* p, First n) { return {_mm512_maskz_loadu_ps(lanes_mask(n), p)}; }
  TRIREME_INLINE static Floats load(const Bf16* p, First n) {
    return {to_floats(_mm256_maskz_loadu_epi16(lanes_mask(n), p))};
  }
  TRIREME_INLINE static Floats load(const F16* p, First n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes_mask(n), p))};
  }
  TRIREME_INLINE void store(float* p, All) const { _mm512_storeu_ps(p, v); }
  TRIREME_INLINE void store(Bf16* p, All) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bfloats(v)); }
  TRIREME_INLINE void store(F16* p, All) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  TRIREME_INLINE void store(float* p, First n) const { _mm512_mask_storeu_ps(p, lanes_mask(n), v); }
  TRIREME_INLINE void store(Bf16* p, First n) const { _mm256_mask_storeu_epi16(p, lanes_mask(n), to_bfloats(v)); }
  TRIREME_INLINE void store(F16* p, First n) const {
    _mm256_mask_storeu_epi16(p, lanes_mask(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  TRIREME_INLINE friend Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
  TRIREME_INLINE friend Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
  TRIREME_INLINE friend Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
  TRIREME_INLINE friend Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
};

TRIREME_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TRIREME_INLINE Floats at_most(Floats bound, Floats x) { return {_mm512_min_ps(bound.v, x.v)}; }
TRIREME_INLINE Floats at_least(Floats bound, Floats x) { return {_mm512_max_ps(bound.v, x.v)}; }
TRIREME_INLINE Floats absolute(Floats x) { return {_mm512_abs_ps(x.v)}; }
TRIREME_INLINE Floats square_root(Floats x) { return {_mm512_sqrt_ps(x.v)}; }
TRIREME_INLINE __mmask16 above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
TRIREME_INLINE __mmask16 not_above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ); }
TRIREME_INLINE Floats choose(__mmask16 condition, Floats a, Floats b) {
  return {_mm512_mask_blend_ps(condition, b.v, a.v)};
}
TRIREME_INLINE Floats fill_rest(Floats x, All, float) { return x; }
TRIREME_INLINE Floats fill_rest(Floats x, First n, float fill) {
  return {_mm512_mask_mov_ps(_mm512_set1_ps(fill), lanes_mask(n), x.v)};
}
TRIREME_INLINE float sum_of(Floats x) { return _mm512_reduce_add_ps(x.v); }
TRIREME_INLINE float largest_of(Floats x) { return _mm512_reduce_max_ps(x.v); }
TRIREME_INLINE Floats nearest(Floats x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/// x - floor(x), 0 for infinities, and x * 2^floor(n): one instruction each, which spares two_to() its bounds.
TRIREME_INLINE Floats above_floor(Floats x) {
  return {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
TRIREME_INLINE Floats times_two_to(Floats x, Floats n) { return {_mm512_scalef_ps(x.v, n.v)}; }
TRIREME_INLINE Floats square_error(Floats x, Floats square) { return {_mm512_fmsub_ps(x.v, x.v, square.v)}; }
TRIREME_INLINE Floats swap_neighbours(Floats x) { return {_mm512_permute_ps(x.v, 0xB1)}; }

/// A lane has the 32 bits of eight neighbouring codes, the first of them lowest.
struct NibbleWords {
  __m512i v;
  /// What each code stands for, (code - zero) * scale: a lane a code where all lanes share scale and zero point.
  struct Meaning {
    __m512 values;
  };
  TRIREME_INLINE static NibbleWords load(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
  TRIREME_INLINE static Meaning meaning(float scale, float zero) {
    const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm512_mul_ps(_mm512_sub_ps(codes, _mm512_set1_ps(zero)), _mm512_set1_ps(scale))};
  }
  /// The code at place `kAt` of each lane. A permutation looks at four bits of an index alone.
  template <int kAt>
  TRIREME_INLINE Floats at(const Meaning& meaning) const {
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(v, 4 * kAt), meaning.values)};
  }
  /// The same where lanes have scales and zero points of their own.
  template <int kAt>
  TRIREME_INLINE Floats at(Floats scale, Floats zero) const {
    const __m512i code = _mm512_and_si512(_mm512_srli_epi32(v, 4 * kAt), _mm512_set1_epi32(15));
    return {_mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(code), zero.v), scale.v)};
  }
};

/// By way of float16, whose exponent has the bias 15 and not 7.
TRIREME_INLINE Floats e4m3_of_bytes(__m128i bytes) {
  const __m256i words = _mm256_cvtepi8_epi16(bytes);
  const __m256i sign = _mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0x8000)));
  const __m256i rest = _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x7f)), 7);
  return {_mm512_cvtph_ps(_mm256_or_si256(sign, rest))};
}
TRIREME_INLINE Floats e4m3_floats(const std::uint8_t* p, All) {
  return e4m3_of_bytes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TRIREME_INLINE Floats e4m3_floats(const std::uint8_t* p, First n) {
  return e4m3_of_bytes(_mm_maskz_loadu_epi8(lanes_mask(n), p));
}

/// A sum kept in double, eight lanes.
struct Squares {
  __m512d v = _mm512_setzero_pd();
  TRIREME_INLINE void add(Floats x) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x.v));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1));
    v = _mm512_fmadd_pd(low, low, v);
    v = _mm512_fmadd_pd(high, high, v);
  }
  TRIREME_INLINE double total() const { return _mm512_reduce_add_pd(v); }
};

}  // namespace
}  // namespace trireme::kernels
