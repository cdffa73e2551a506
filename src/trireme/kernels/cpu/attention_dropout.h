// kernels/cpu/attention_dropout.h -- the draw of a probability: a function of (stream, sample, head, query, key).
//
// Each (sample, head) has a stream of its own, four words drawn from the layer's: two are the key of a second Philox,
// two are half of its counter. The other half is the query's position and the number of a block of keys. A block gives
// four draws, for keys that lie 16 apart, so that a vector of blocks gives four vectors of neighbours: key 64 g + 16 w
// + l has word w of block 16 g + l. Depends on: attention_vector.h; base/random.h has the generator for one block.
#pragma once

#include <cstdint>

#include "trireme/kernels/cpu/attention_vector.h"

namespace trireme::kernels::cpu {
namespace {

/// The 64-bit products of the lower halves of 64-bit lanes.
TRIREME_INLINE Uint64Vector multiply_lower(Uint64Vector a, Uint64Vector b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Uint64Vector>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Uint64Vector>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<Uint64Vector>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/// The upper and lower halves of 32-bit lanes' products with one number.
struct Product {
  Uint32Vector upper, lower;

  TRIREME_INLINE Product(Uint32Vector x, std::uint32_t factor) {
    const Uint64Vector pairs = reinterpret_cast<Uint64Vector>(x), factors = Uint64Vector{} + factor;
    const Uint64Vector even = multiply_lower(pairs, factors), odd = multiply_lower(pairs >> 32, factors);
    constexpr std::uint64_t kUpper = 0xffffffff00000000;
    upper = reinterpret_cast<Uint32Vector>((even >> 32) | (odd & kUpper));
    lower = reinterpret_cast<Uint32Vector>((even & ~kUpper) | (odd << 32));
  }
};

/// philox()'s ten rounds (base/random.h), a block in each lane.
TRIREME_INLINE void philox_lanes(Uint32Vector (&counter)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const Product left(counter[0], 0xD2511F53), right(counter[2], 0xCD9E8D57);
    counter[0] = right.upper ^ counter[1] ^ key0;
    counter[1] = right.lower;
    counter[2] = left.upper ^ counter[3] ^ key1;
    counter[3] = left.lower;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

/// The draws of query `query` and keys [first, first + count), all positions below 2^32.
[[gnu::noinline]] void draw_dropout_words(const std::uint32_t (&stream)[4], std::uint32_t query, std::uint32_t first,
                                          std::int64_t count, std::uint32_t* out) {
  const std::uint64_t end = std::uint64_t{first} + static_cast<std::uint64_t>(count);
  constexpr int kWidth = kLanes<std::uint32_t>;
  Uint32Vector numbers;
  for (int i = 0; i < kWidth; ++i) numbers[i] = static_cast<std::uint32_t>(i);
  for (std::uint64_t key = first / 64 * std::uint64_t{64}; key < end; key += 64) {
    alignas(64) std::uint32_t dropout_rng[64];
    for (int lane = 0; lane < 16; lane += kWidth) {
      const Uint32Vector block = numbers + (static_cast<std::uint32_t>(key / 4) + static_cast<std::uint32_t>(lane));
      Uint32Vector words[4] = {Uint32Vector{} + query, block, Uint32Vector{} + stream[2], Uint32Vector{} + stream[3]};
      philox_lanes(words, stream[0], stream[1]);
      for (int word = 0; word < 4; ++word) store(dropout_rng + 16 * word + lane, words[word]);
    }
    const std::uint64_t from = key < first ? first : key, to = end < key + 64 ? end : key + 64;
    std::memcpy(out + (from - first), dropout_rng + (from - key), (to - from) * sizeof(std::uint32_t));
  }
}

}  // namespace
}  // namespace trireme::kernels::cpu
