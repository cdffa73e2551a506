// kernels/cpu/vec_avx2.h -- Floats in 256-bit registers; see vec.h.
#pragma once

namespace trireme::kernels {
namespace {

TRIREME_INLINE __m256i lanes_mask(First some) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(some.count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

TRIREME_INLINE __m256 to_floats(__m128i bfloats) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bfloats), 16));
}
TRIREME_INLINE __m128i to_bfloats(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
  // A NaN whose payload sits in the low bits would round to infinity: keep it a NaN.
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

struct Floats {
  using Scalar = float;
  using Mask = __m256;
  static constexpr std::int64_t kLanes = 8;
  __m256 v;

  TRIREME_INLINE static Floats all(float x) { return {_mm256_set1_ps(x)}; }
  TRIREME_INLINE float first() const { return _mm256_cvtss_f32(v); }
  TRIREME_INLINE static Floats load(const float* p, All) { return {_mm256_loadu_ps(p)}; }
  TRIREME_INLINE static Floats load(const Bf16* p, All) {
    return {to_floats(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  TRIREME_INLINE static Floats load(const F16* p, All) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  TRIREME_INLINE static Floats load(const std::int8_t* p, All) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
  }
  TRIREME_INLINE static Floats load(const float* p, First n) { return {_mm256_maskload_ps(p, lanes_mask(n))}; }
  template <typename T>
  TRIREME_INLINE static Floats load(const T* p, First n) {
    T few[kLanes] = {};
    for (int i = 0; i < n.count; ++i) few[i] = p[i];
    return load(few, All{});
  }
  TRIREME_INLINE void store(float* p, All) const { _mm256_storeu_ps(p, v); }
  TRIREME_INLINE void store(Bf16* p, All) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bfloats(v)); }
  TRIREME_INLINE void store(F16* p, All) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  TRIREME_INLINE void store(float* p, First n) const { _mm256_maskstore_ps(p, lanes_mask(n), v); }
  template <typename T>
  TRIREME_INLINE void store(T* p, First n) const {
    T few[kLanes];
    store(few, All{});
    for (int i = 0; i < n.count; ++i) p[i] = few[i];
  }
  TRIREME_INLINE friend Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
  TRIREME_INLINE friend Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
  TRIREME_INLINE friend Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
  TRIREME_INLINE friend Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
};

TRIREME_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TRIREME_INLINE Floats at_most(Floats bound, Floats x) { return {_mm256_min_ps(bound.v, x.v)}; }
TRIREME_INLINE Floats at_least(Floats bound, Floats x) { return {_mm256_max_ps(bound.v, x.v)}; }
TRIREME_INLINE Floats absolute(Floats x) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x.v)}; }
TRIREME_INLINE Floats square_root(Floats x) { return {_mm256_sqrt_ps(x.v)}; }
TRIREME_INLINE __m256 above(Floats a, Floats b) { return _mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ); }
TRIREME_INLINE __m256 not_above(Floats a, Floats b) { return _mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ); }
TRIREME_INLINE Floats choose(__m256 condition, Floats a, Floats b) { return {_mm256_blendv_ps(b.v, a.v, condition)}; }
TRIREME_INLINE Floats fill_rest(Floats x, All, float) { return x; }
TRIREME_INLINE Floats fill_rest(Floats x, First n, float fill) {
  return {_mm256_blendv_ps(_mm256_set1_ps(fill), x.v, _mm256_castsi256_ps(lanes_mask(n)))};
}
TRIREME_INLINE float sum_of(Floats x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
TRIREME_INLINE float largest_of(Floats x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
TRIREME_INLINE Floats nearest(Floats x) {
  return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TRIREME_INLINE Floats times_two_to(Floats x, Floats n) {
  // In two factors, each a normal number, for results beyond the normal range.
  const __m256i whole = _mm256_cvtps_epi32(n.v), half = _mm256_srai_epi32(whole, 1);
  const __m256i one = _mm256_set1_epi32(127);
  const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, one), 23));
  const __m256 second =
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), one), 23));
  return {_mm256_mul_ps(_mm256_mul_ps(x.v, first), second)};
}
TRIREME_INLINE Floats square_error(Floats x, Floats square) { return {_mm256_fmsub_ps(x.v, x.v, square.v)}; }
TRIREME_INLINE Floats swap_neighbours(Floats x) { return {_mm256_permute_ps(x.v, 0xB1)}; }

/// A lane has the 32 bits of eight neighbouring codes, the first of them lowest.
struct NibbleWords {
  __m256i v;
  struct Meaning {
    Floats scale, zero;
  };
  TRIREME_INLINE static NibbleWords load(const std::uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  }
  TRIREME_INLINE static Meaning meaning(float scale, float zero) { return {Floats::all(scale), Floats::all(zero)}; }
  template <int kAt>
  TRIREME_INLINE Floats at(Floats scale, Floats zero) const {
    const __m256i code = _mm256_and_si256(_mm256_srli_epi32(v, 4 * kAt), _mm256_set1_epi32(15));
    return {_mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(code), zero.v), scale.v)};
  }
  template <int kAt>
  TRIREME_INLINE Floats at(const Meaning& meaning) const {
    return at<kAt>(meaning.scale, meaning.zero);
  }
};

/// By way of float16, whose exponent has the bias 15 and not 7.
TRIREME_INLINE Floats e4m3_floats(const std::uint8_t* p, All) {
  const __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m128i sign = _mm_and_si128(words, _mm_set1_epi16(static_cast<short>(0x8000)));
  const __m128i rest = _mm_slli_epi16(_mm_and_si128(words, _mm_set1_epi16(0x7f)), 7);
  return {_mm256_cvtph_ps(_mm_or_si128(sign, rest))};
}
TRIREME_INLINE Floats e4m3_floats(const std::uint8_t* p, First n) {
  std::uint8_t few[Floats::kLanes] = {};
  for (int i = 0; i < n.count; ++i) few[i] = p[i];
  return e4m3_floats(few, All{});
}

/// A sum kept in double, four lanes.
struct Squares {
  __m256d v = _mm256_setzero_pd();
  TRIREME_INLINE void add(Floats x) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x.v));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x.v, 1));
    v = _mm256_fmadd_pd(low, low, v);
    v = _mm256_fmadd_pd(high, high, v);
  }
  TRIREME_INLINE double total() const {
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
};

}  // namespace
}  // namespace trireme::kernels
