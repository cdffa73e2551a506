// kernels/cpu/code_lanes.h -- sixteen floats at a time, in as many registers as that takes: what codes of gradients are
// written with.
//
// Sums run in sixteen lanes whatever the instruction set, lanes are joined in one order and nothing is fused that would
// round otherwise: codes and residuals have the same bits on every machine. Choices are masks, never branches, since
// nobody can predict the signs of gradients. Included by bodies only, after vec.h's rules.
#pragma once

#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

constexpr std::int64_t kCodeLanes = 16;
constexpr int kCodeParts = static_cast<int>(kCodeLanes / Floats::kLanes);

/// One bit a lane, the first lowest.
TRIREME_INLINE std::uint32_t mask_bits(Floats::Mask mask) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return mask;
#elif defined(__AVX2__) && defined(__FMA__)
  return static_cast<std::uint32_t>(_mm256_movemask_ps(mask));
#else
  std::uint32_t bits = 0;
  for (int lane = 0; lane < 4; ++lane) bits |= static_cast<std::uint32_t>(mask[lane] & 1) << lane;
  return bits;
#endif
}
/// The lowest bits of `bits` as a mask.
TRIREME_INLINE Floats::Mask mask_of(std::uint32_t bits) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return static_cast<__mmask16>(bits);
#elif defined(__AVX2__) && defined(__FMA__)
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i here = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(here, each));
#else
  const auto b = static_cast<std::int32_t>(bits);
  return (FourInts{b, b, b, b} & FourInts{1, 2, 4, 8}) != FourInts{0, 0, 0, 0};
#endif
}

struct CodeMask {
  Floats::Mask part[kCodeParts];

  TRIREME_INLINE static CodeMask of(std::uint32_t bits) {
    CodeMask mask;
    for (int i = 0; i < kCodeParts; ++i) mask.part[i] = mask_of(bits >> (i * Floats::kLanes));
    return mask;
  }
  TRIREME_INLINE std::uint32_t bits() const {
    std::uint32_t all = 0;
    for (int i = 0; i < kCodeParts; ++i) all |= mask_bits(part[i]) << (i * Floats::kLanes);
    return all;
  }
};

struct CodeLanes {
  Floats part[kCodeParts];

  template <typename F>
  TRIREME_INLINE static CodeLanes each(F&& f) {
    CodeLanes lanes;
    for (int i = 0; i < kCodeParts; ++i) lanes.part[i] = f(i);
    return lanes;
  }
  TRIREME_INLINE static CodeLanes all(float x) {
    return each([&](int) TRIREME_LAMBDA { return Floats::all(x); });
  }
  TRIREME_INLINE static CodeLanes load(const float* p) {
    return each([&](int i) TRIREME_LAMBDA { return Floats::load(p + i * Floats::kLanes, All{}); });
  }
  TRIREME_INLINE void store(float* p) const {
    for (int i = 0; i < kCodeParts; ++i) part[i].store(p + i * Floats::kLanes, All{});
  }
  TRIREME_INLINE friend CodeLanes operator+(const CodeLanes& a, const CodeLanes& b) {
    return each([&](int i) TRIREME_LAMBDA { return a.part[i] + b.part[i]; });
  }
  TRIREME_INLINE friend CodeLanes operator-(const CodeLanes& a, const CodeLanes& b) {
    return each([&](int i) TRIREME_LAMBDA { return a.part[i] - b.part[i]; });
  }
  TRIREME_INLINE friend CodeLanes operator*(const CodeLanes& a, const CodeLanes& b) {
    return each([&](int i) TRIREME_LAMBDA { return a.part[i] * b.part[i]; });
  }
};

TRIREME_INLINE CodeLanes choose(const CodeMask& mask, const CodeLanes& a, const CodeLanes& b) {
  return CodeLanes::each([&](int i) TRIREME_LAMBDA { return choose(mask.part[i], a.part[i], b.part[i]); });
}
/// x >= 0, which a NaN is not.
TRIREME_INLINE CodeMask not_below_zero(const CodeLanes& x) {
  CodeMask mask;
  for (int i = 0; i < kCodeParts; ++i) mask.part[i] = not_above(Floats::all(0), x.part[i]);
  return mask;
}
/// x == 0, which a NaN is not.
TRIREME_INLINE CodeMask is_zero(const CodeLanes& x) {
  CodeMask mask;
  for (int i = 0; i < kCodeParts; ++i) mask.part[i] = not_above(absolute(x.part[i]), Floats::all(0));
  return mask;
}

/// In pairs that lie eight, four, two and one apart.
template <typename T>
TRIREME_INLINE double join_lanes(const T (&lanes)[kCodeLanes]) {
  double sums[kCodeLanes];
  for (int i = 0; i < kCodeLanes; ++i) sums[i] = static_cast<double>(lanes[i]);
  for (int step = static_cast<int>(kCodeLanes) / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
  }
  return sums[0];
}

/// A sum of squares kept in double, lane by lane. The square of a float is exact there, so that a fused multiply-add
/// rounds as a product and a sum do.
struct CodeSquares {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  TRIREME_INLINE void add(const CodeLanes& x) {
    const __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(x.part[0].v));
    const __m512d b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.part[0].v, 1));
    low = _mm512_fmadd_pd(a, a, low);
    high = _mm512_fmadd_pd(b, b, high);
  }
  TRIREME_INLINE void store(double (&lanes)[kCodeLanes]) const {
    _mm512_storeu_pd(lanes, low);
    _mm512_storeu_pd(lanes + 8, high);
  }
#elif defined(__AVX2__) && defined(__FMA__)
  __m256d v[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
  TRIREME_INLINE void add(const CodeLanes& x) {
    for (int i = 0; i < 2; ++i) {
      const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(x.part[i].v));
      const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(x.part[i].v, 1));
      v[2 * i] = _mm256_fmadd_pd(a, a, v[2 * i]);
      v[2 * i + 1] = _mm256_fmadd_pd(b, b, v[2 * i + 1]);
    }
  }
  TRIREME_INLINE void store(double (&lanes)[kCodeLanes]) const {
    for (int i = 0; i < 4; ++i) _mm256_storeu_pd(lanes + 4 * i, v[i]);
  }
#else
  double v[kCodeLanes] = {};
  TRIREME_INLINE void add(const CodeLanes& x) {
    float floats[kCodeLanes];
    x.store(floats);
    for (int i = 0; i < kCodeLanes; ++i) v[i] += static_cast<double>(floats[i]) * static_cast<double>(floats[i]);
  }
  TRIREME_INLINE void store(double (&lanes)[kCodeLanes]) const { std::memcpy(lanes, v, sizeof(lanes)); }
#endif
};

TRIREME_INLINE double square_in_double(float x) { return static_cast<double>(x) * static_cast<double>(x); }

/// Signs of sixteen elements in two bytes, of the last few in as many bytes as they need.
TRIREME_INLINE void put_bits(std::uint8_t* bytes, std::uint32_t bits, std::int64_t count = kCodeLanes) {
  bytes[0] = static_cast<std::uint8_t>(bits);
  if (count > 8) bytes[1] = static_cast<std::uint8_t>(bits >> 8);
}
TRIREME_INLINE std::uint32_t take_bits(const std::uint8_t* bytes, std::int64_t count = kCodeLanes) {
  return bytes[0] | (count > 8 ? std::uint32_t{bytes[1]} << 8 : 0U);
}

}  // namespace
}  // namespace trireme::kernels
