// kernels/cpu/philox_lanes.h -- Philox4x32-10 (base/random.h) of several blocks side by side, and the two numbers in
// [0, 1) of each: QSGD's draws, to the bit those of QsgdDraws one by one.
//
// A word of the counter lies in the lower half of a 64-bit lane, so that a product is whole where it is computed; what
// is above is never looked at. Included by bodies only, after vec.h's rules.
#pragma once

#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

constexpr std::uint32_t kPhiloxLeft = 0xD2511F53, kPhiloxRight = 0xCD9E8D57;
constexpr std::uint32_t kPhiloxStep0 = 0x9E3779B9, kPhiloxStep1 = 0xBB67AE85;

/// 53 bits of two words.
TRIREME_INLINE double unit_of(std::uint32_t low, std::uint32_t high) {
  return static_cast<double>(((std::uint64_t{high} << 32) | low) >> 11) * 0x1p-53;
}

TRIREME_INLINE void philox_block(const std::uint32_t (&words)[4], std::uint64_t number, double* out) {
  std::uint32_t c0 = static_cast<std::uint32_t>(number), c1 = static_cast<std::uint32_t>(number >> 32), c2 = words[2],
                c3 = words[3], k0 = words[0], k1 = words[1];
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = std::uint64_t{kPhiloxLeft} * c0, right = std::uint64_t{kPhiloxRight} * c2;
    c0 = static_cast<std::uint32_t>(right >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(right);
    c2 = static_cast<std::uint32_t>(left >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(left);
    k0 += kPhiloxStep0;
    k1 += kPhiloxStep1;
  }
  out[0] = unit_of(c0, c1);
  out[1] = unit_of(c2, c3);
}

#if defined(__AVX512F__) && defined(__AVX512DQ__)
constexpr int kPhiloxBlocks = 8;

TRIREME_INLINE __m512d units_of(__m512i low, __m512i high) {
  const __m512i both = _mm512_mask_mov_epi32(_mm512_slli_epi64(high, 32), 0x5555, low);
  return _mm512_mul_pd(_mm512_cvtepu64_pd(_mm512_srli_epi64(both, 11)), _mm512_set1_pd(0x1p-53));
}
TRIREME_INLINE void philox_blocks(const std::uint32_t (&words)[4], std::uint64_t first, double* out) {
  const __m512i left_factor = _mm512_set1_epi64(kPhiloxLeft), right_factor = _mm512_set1_epi64(kPhiloxRight);
  const __m512i number =
      _mm512_add_epi64(_mm512_set1_epi64(static_cast<long long>(first)), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  __m512i c0 = number, c1 = _mm512_srli_epi64(number, 32), c2 = _mm512_set1_epi64(words[2]),
          c3 = _mm512_set1_epi64(words[3]);
  std::uint32_t k0 = words[0], k1 = words[1];
  for (int round = 0; round < 10; ++round) {
    const __m512i left = _mm512_mul_epu32(left_factor, c0), right = _mm512_mul_epu32(right_factor, c2);
    // 0x96: the exclusive or of three.
    c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(right, 32), c1, _mm512_set1_epi64(k0), 0x96);
    c1 = right;
    c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(left, 32), c3, _mm512_set1_epi64(k1), 0x96);
    c3 = left;
    k0 += kPhiloxStep0;
    k1 += kPhiloxStep1;
  }
  const __m512d even = units_of(c0, c1), odd = units_of(c2, c3);
  const __m512i first_half = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11),
                second_half = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_pd(out, _mm512_permutex2var_pd(even, first_half, odd));
  _mm512_storeu_pd(out + 8, _mm512_permutex2var_pd(even, second_half, odd));
}
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kPhiloxBlocks = 4;

/// Exact: there is no instruction for 64 bits, so each half is the mantissa of a power of two that is taken off again.
TRIREME_INLINE __m256d units_of(__m256i low, __m256i high) {
  const __m256i both = _mm256_blend_epi32(_mm256_slli_epi64(high, 32), low, 0x55), bits = _mm256_srli_epi64(both, 11);
  const __m256i under = _mm256_blend_epi32(bits, _mm256_set1_epi32(0x43300000), 0xAA);  // 2^52 + the lower 32 bits
  const __m256i upper = _mm256_or_si256(_mm256_srli_epi64(bits, 32), _mm256_set1_epi64x(0x4530000000000000));
  const __m256d above = _mm256_sub_pd(_mm256_castsi256_pd(upper), _mm256_set1_pd(0x1p84 + 0x1p52));
  return _mm256_mul_pd(_mm256_add_pd(above, _mm256_castsi256_pd(under)), _mm256_set1_pd(0x1p-53));
}
TRIREME_INLINE void philox_blocks(const std::uint32_t (&words)[4], std::uint64_t first, double* out) {
  const __m256i left_factor = _mm256_set1_epi64x(kPhiloxLeft), right_factor = _mm256_set1_epi64x(kPhiloxRight);
  const __m256i number =
      _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(first)), _mm256_setr_epi64x(0, 1, 2, 3));
  __m256i c0 = number, c1 = _mm256_srli_epi64(number, 32), c2 = _mm256_set1_epi64x(words[2]),
          c3 = _mm256_set1_epi64x(words[3]);
  std::uint32_t k0 = words[0], k1 = words[1];
  for (int round = 0; round < 10; ++round) {
    const __m256i left = _mm256_mul_epu32(left_factor, c0), right = _mm256_mul_epu32(right_factor, c2);
    c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(right, 32), c1), _mm256_set1_epi64x(k0));
    c1 = right;
    c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(left, 32), c3), _mm256_set1_epi64x(k1));
    c3 = left;
    k0 += kPhiloxStep0;
    k1 += kPhiloxStep1;
  }
  const __m256d even = units_of(c0, c1), odd = units_of(c2, c3);
  const __m256d low = _mm256_unpacklo_pd(even, odd), high = _mm256_unpackhi_pd(even, odd);  // blocks 0 and 2, 1 and 3
  _mm256_storeu_pd(out, _mm256_permute2f128_pd(low, high, 0x20));
  _mm256_storeu_pd(out + 4, _mm256_permute2f128_pd(low, high, 0x31));
}
#else
constexpr int kPhiloxBlocks = 1;
TRIREME_INLINE void philox_blocks(const std::uint32_t (&words)[4], std::uint64_t first, double* out) {
  philox_block(words, first, out);
}
#endif

}  // namespace
}  // namespace trireme::kernels
