// kernels/cpu/level_codes_body.h -- the loops behind gradient_codes.h that round to levels, included once per
// instruction set. Each element is computed by itself with nothing fused, so bits do not depend on the set.
#include "trireme/kernels/cpu/level_codes_table.h"
#include "trireme/kernels/cpu/philox_lanes.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

void draws(const std::uint32_t (&words)[4], std::uint64_t first_block, std::int64_t blocks, double* out) {
  std::int64_t i = 0;
  for (; i + kPhiloxBlocks <= blocks; i += kPhiloxBlocks)
    philox_blocks(words, first_block + static_cast<std::uint64_t>(i), out + 2 * i);
  for (; i < blocks; ++i) philox_block(words, first_block + static_cast<std::uint64_t>(i), out + 2 * i);
}

/// Sizes are in the order of their bits, and a NaN is above infinity.
std::uint32_t largest(const float* values, std::int64_t count) {
  std::int32_t most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t size = bits_as<std::int32_t>(values[i]) & 0x7fffffff;
    most = size > most ? size : most;
  }
  return static_cast<std::uint32_t>(most);
}

void quantise(const float* values, const double* uniform, std::int64_t count, double scale, std::int32_t most,
              std::int32_t* levels) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double a = __builtin_fabs(static_cast<double>(values[i])) * scale;
    const auto whole = static_cast<std::int32_t>(a);  // a is no less than 0: its floor
    const std::int32_t up = whole + (uniform[i] < a - static_cast<double>(whole) ? 1 : 0);
    const std::int32_t level = up < most ? up : most;  // the norm may have been rounded down
    levels[i] = values[i] < 0 ? -level : level;
  }
}

void put_nibbles(const std::int32_t* levels, std::int64_t count, std::int32_t most, std::uint8_t* code) {
  const std::int64_t pairs = count / 2;
  for (std::int64_t i = 0; i < pairs; ++i)
    code[i] = static_cast<std::uint8_t>((levels[2 * i] + most) | (levels[2 * i + 1] + most) << 4);
  if (count % 2 == 1) code[pairs] = static_cast<std::uint8_t>(levels[count - 1] + most);
}

// As many floats as a register has, from as many nibbles.
#if defined(__AVX512F__) && defined(__AVX512BW__)
struct SaidTable {
  __m512 values;
  TRIREME_INLINE explicit SaidTable(const float (&said)[16]) : values(_mm512_loadu_ps(said)) {}
  TRIREME_INLINE Floats at(const std::uint8_t* code) const {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(code));
    // A permutation looks at four bits of an index alone.
    const __m128i both = _mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4));
    return {_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(both), values)};
  }
};
#elif defined(__AVX2__) && defined(__FMA__)
struct SaidTable {
  __m256 low, high;
  TRIREME_INLINE explicit SaidTable(const float (&said)[16])
      : low(_mm256_loadu_ps(said)), high(_mm256_loadu_ps(said + 8)) {}
  TRIREME_INLINE Floats at(const std::uint8_t* code) const {
    std::int32_t four;
    std::memcpy(&four, code, sizeof(four));
    const __m128i bytes = _mm_cvtsi32_si128(four);
    const __m256i places = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4)));
    // Permutations look at three bits, the choice between them at the highest one of a lane: the fourth.
    const __m256 fourth = _mm256_castsi256_ps(_mm256_slli_epi32(places, 28));
    return {_mm256_blendv_ps(_mm256_permutevar8x32_ps(low, places), _mm256_permutevar8x32_ps(high, places), fourth)};
  }
};
#else
struct SaidTable {
  const float (&said)[16];
  TRIREME_INLINE explicit SaidTable(const float (&values)[16]) : said(values) {}
  TRIREME_INLINE Floats at(const std::uint8_t* code) const {
    return {FourFloats{said[code[0] & 15], said[code[0] >> 4], said[code[1] & 15], said[code[1] >> 4]}};
  }
};
#endif

void add_nibbles(const std::uint8_t* code, std::int64_t count, const float (&said)[16], float* sum) {
  const SaidTable table(said);
  std::int64_t i = 0;
  for (; i + Floats::kLanes <= count; i += Floats::kLanes)
    (Floats::load(sum + i, All{}) + table.at(code + i / 2)).store(sum + i, All{});
  for (; i < count; ++i) sum[i] += said[i % 2 == 0 ? code[i / 2] & 15 : code[i / 2] >> 4];
}

/// Whole numbers of at most seven bits and a sign.
TRIREME_INLINE void store_bytes(Floats x, std::int8_t* p, All) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)));
#elif defined(__AVX2__) && defined(__FMA__)
  const __m256i whole = _mm256_cvtps_epi32(x.v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
#else
  for (int i = 0; i < 4; ++i) p[i] = static_cast<std::int8_t>(x.v[i]);
#endif
}
TRIREME_INLINE void store_bytes(Floats x, std::int8_t* p, First n) {
  std::int8_t few[Floats::kLanes];
  store_bytes(x, few, All{});
  for (int i = 0; i < n.count; ++i) p[i] = few[i];
}

void encode_bytes(float* values, std::int64_t count, float scale, std::int8_t* code) {
  const bool says_something = scale > 0;  // neither zeros nor what is not finite
  const Floats factor = Floats::all(scale), divisor = Floats::all(says_something ? scale : 1.0F);
  const Floats most = Floats::all(127), least = Floats::all(-127);
  each<Floats>(count, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
    Floats level = Floats::all(0);
    // Within bounds first: a scale so small that it was rounded gives more levels than there are. Of zeros that without
    // a sign, since a code has no other.
    if (says_something)
      level = level + nearest(at_most(most, at_least(least, Floats::load(values + i, some) / divisor)));
    store_bytes(level, code + i, some);
    (factor * level).store(values + i, some);
  });
}

void add_bytes(const std::int8_t* code, std::int64_t count, float scale, float* sum) {
  const Floats factor = Floats::all(scale);
  each<Floats>(count, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
    (Floats::load(sum + i, some) + factor * Floats::load(code + i, some)).store(sum + i, some);
  });
}

void encode_halves(float* values, std::int64_t count, std::uint16_t* code) {
  auto* halves = reinterpret_cast<F16*>(code);
  each<Floats>(count, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
    Floats::load(values + i, some).store(halves + i, some);
    Floats::load(halves + i, some).store(values + i, some);
  });
}

void add_halves(const std::uint16_t* code, std::int64_t count, float* sum) {
  const auto* halves = reinterpret_cast<const F16*>(code);
  each<Floats>(count, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
    (Floats::load(sum + i, some) + Floats::load(halves + i, some)).store(sum + i, some);
  });
}

}  // namespace

extern const LevelCodesTable TRIREME_LEVEL_CODES_TABLE = {
    draws, largest, quantise, put_nibbles, add_nibbles, encode_bytes, add_bytes, encode_halves, add_halves};

}  // namespace trireme::kernels
