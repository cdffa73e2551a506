// kernels/cpu/dropout_body.h -- the loop behind dropout.h, included once per instruction set.
#include "trireme/kernels/cpu/dropout_table.h"
#include "trireme/kernels/cpu/vec.h"

namespace trireme::kernels {
namespace {

// Philox4x32-10 (base/random.h) for many counters at once. A 32-bit word sits in the low half of each 64-bit lane,
// where the widening multiplication wants it; what is left in the high half is never looked at.

#if defined(__AVX512F__) && defined(__AVX512BW__)
struct Words {
  static constexpr int kLanes = 8;
  __m512i v;

  TRIREME_INLINE static Words all(std::uint32_t x) { return {_mm512_set1_epi64(x)}; }
  /// n, n + 1, ...
  TRIREME_INLINE static Words counting(std::uint64_t n) {
    const __m512i steps = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    return {_mm512_add_epi64(_mm512_set1_epi64(static_cast<long long>(n)), steps)};
  }
  TRIREME_INLINE friend Words operator*(Words a, Words b) { return {_mm512_mul_epu32(a.v, b.v)}; }
  TRIREME_INLINE Words high() const { return {_mm512_srli_epi64(v, 32)}; }
};
TRIREME_INLINE Words mix(Words a, Words b, Words c) { return {_mm512_ternarylogic_epi64(a.v, b.v, c.v, 0x96)}; }
/// Block by block: out[4 b + w] is word w of lane b.
TRIREME_INLINE void store_blocks(std::uint32_t* out, Words w0, Words w1, Words w2, Words w3) {
  const __m512i front = _mm512_mask_blend_epi32(0xAAAA, w0.v, _mm512_slli_epi64(w1.v, 32));
  const __m512i back = _mm512_mask_blend_epi32(0xAAAA, w2.v, _mm512_slli_epi64(w3.v, 32));
  const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi64(front, low, back));
  _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(front, high, back));
}
#elif defined(__AVX2__)
struct Words {
  static constexpr int kLanes = 4;
  __m256i v;

  TRIREME_INLINE static Words all(std::uint32_t x) { return {_mm256_set1_epi64x(x)}; }
  TRIREME_INLINE static Words counting(std::uint64_t n) {
    return {_mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(n)), _mm256_setr_epi64x(0, 1, 2, 3))};
  }
  TRIREME_INLINE friend Words operator*(Words a, Words b) { return {_mm256_mul_epu32(a.v, b.v)}; }
  TRIREME_INLINE Words high() const { return {_mm256_srli_epi64(v, 32)}; }
};
TRIREME_INLINE Words mix(Words a, Words b, Words c) { return {_mm256_xor_si256(_mm256_xor_si256(a.v, b.v), c.v)}; }
TRIREME_INLINE void store_blocks(std::uint32_t* out, Words w0, Words w1, Words w2, Words w3) {
  const __m256i front = _mm256_blend_epi32(w0.v, _mm256_slli_epi64(w1.v, 32), 0xAA);
  const __m256i back = _mm256_blend_epi32(w2.v, _mm256_slli_epi64(w3.v, 32), 0xAA);
  const __m256i even = _mm256_unpacklo_epi64(front, back), odd = _mm256_unpackhi_epi64(front, back);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8), _mm256_permute2x128_si256(even, odd, 0x31));
}
#else
struct Words {
  static constexpr int kLanes = 1;
  std::uint64_t v;

  TRIREME_INLINE static Words all(std::uint32_t x) { return {x}; }
  TRIREME_INLINE static Words counting(std::uint64_t n) { return {n}; }
  TRIREME_INLINE friend Words operator*(Words a, Words b) { return {(a.v & 0xffffffffu) * (b.v & 0xffffffffu)}; }
  TRIREME_INLINE Words high() const { return {v >> 32}; }
};
TRIREME_INLINE Words mix(Words a, Words b, Words c) { return {a.v ^ b.v ^ c.v}; }
TRIREME_INLINE void store_blocks(std::uint32_t* out, Words w0, Words w1, Words w2, Words w3) {
  out[0] = static_cast<std::uint32_t>(w0.v);
  out[1] = static_cast<std::uint32_t>(w1.v);
  out[2] = static_cast<std::uint32_t>(w2.v);
  out[3] = static_cast<std::uint32_t>(w3.v);
}
#endif

constexpr int kPhiloxGroups = 4;  // side by side, since each round waits for the last
constexpr std::int64_t kPhiloxBlocks = kPhiloxGroups * Words::kLanes;

/// out[4 b + w] = word w of the block at counter {number + b, salt}, for kPhiloxBlocks blocks.
TRIREME_INLINE void philox_blocks(std::uint32_t* out, std::uint64_t number, const std::uint32_t* salt,
                                  const std::uint32_t* key) {
  Words w0[kPhiloxGroups], w1[kPhiloxGroups], w2[kPhiloxGroups], w3[kPhiloxGroups];
  for (int g = 0; g < kPhiloxGroups; ++g) {
    w0[g] = Words::counting(number + static_cast<std::uint64_t>(g * Words::kLanes));
    w1[g] = w0[g].high();
    w2[g] = Words::all(salt[0]);
    w3[g] = Words::all(salt[1]);
  }
  const Words left = Words::all(0xD2511F53), right = Words::all(0xCD9E8D57);
  std::uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const Words key0 = Words::all(k0), key1 = Words::all(k1);
    for (int g = 0; g < kPhiloxGroups; ++g) {
      const Words a = w0[g] * left, b = w2[g] * right;
      w0[g] = mix(b.high(), w1[g], key0);
      w1[g] = b;
      w2[g] = mix(a.high(), w3[g], key1);
      w3[g] = a;
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  for (int g = 0; g < kPhiloxGroups; ++g) {
    store_blocks(out + 4 * g * Words::kLanes, w0[g], w1[g], w2[g], w3[g]);
  }
}

constexpr std::int64_t kPiece = 512;                       // draws at a time; they stay in the first-level cache
constexpr std::int64_t kDrawsPerCall = 4 * kPhiloxBlocks;  // made by one call

template <typename T>
void dropout_rows(const DropoutLoop& c, std::int64_t begin, std::int64_t end) {
  using V = typename LanesOf<T>::Type;
  using A = typename V::Scalar;
  alignas(64) std::uint32_t dropout_rng[kPiece + kDrawsPerCall];
  alignas(64) A factors[kPiece + kDrawsPerCall];
  const A kept = static_cast<A>(c.factor);
  const V zero = V::all(0);
  for (std::int64_t row = begin; row < end; ++row) {
    T* x = row_of(static_cast<T*>(c.x), row, c.stride);
    const std::uint64_t first =
        static_cast<std::uint64_t>(c.row_index[row]) * static_cast<std::uint64_t>(c.columns_total) +
        static_cast<std::uint64_t>(c.first_column);
    for (std::int64_t column = 0; column < c.width; column += kPiece) {
      const std::int64_t count = c.width - column < kPiece ? c.width - column : kPiece;
      const std::uint64_t number = first + static_cast<std::uint64_t>(column);
      const auto skip = static_cast<std::int64_t>(number % 4);
      for (std::int64_t made = 0; made < skip + count; made += kDrawsPerCall) {
        philox_blocks(dropout_rng + made, number / 4 + static_cast<std::uint64_t>(made / 4), c.salt, c.key);
        for (std::int64_t i = made; i < made + kDrawsPerCall; ++i)
          factors[i] = dropout_rng[i] < c.threshold ? A(0) : kept;
      }
      // Chosen, not multiplied: what falls is 0 even where it was infinite.
      each<V>(count, [&](std::int64_t i, auto some) TRIREME_LAMBDA {
        const V factor = V::load(factors + skip + i, some), v = V::load(x + column + i, some);
        choose(above(factor, zero), v * factor, zero).store(x + column + i, some);
      });
    }
  }
}

}  // namespace

extern const DropoutTable TRIREME_DROPOUT_TABLE = {
    {dropout_rows<float>, dropout_rows<double>, dropout_rows<Bf16>, dropout_rows<F16>}};

}  // namespace trireme::kernels
