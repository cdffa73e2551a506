// base/random.h -- random numbers that are a function of (seed, stream name, index), and of nothing else.
//
// Any rank draws any part of a stream without the rest: element 10^12 costs what element 0 costs, shards of a tensor
// draw their own indices, and the layout of a run cannot change what is drawn. Each kind of draw (uniform, normal,
// ...) reads numbers of its own, so uniform(i) and normal(i) of one stream are independent. Values do not depend on
// the machine's mathematical library: only on exactly rounded operations.
// Depends on: error. Permutations are in permutation.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace trireme {

// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1,
// 2, 3" (SC 2011): a bijection of 128-bit counters for each 64-bit key, whose output passes BigCrush even when the
// counter merely counts. No state, so any element can be drawn by anyone, in any order.

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// Inlined everywhere: bulk fills count on the compiler running several blocks in the lanes of a vector.
[[gnu::always_inline]] constexpr inline PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t right = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(right),
               static_cast<std::uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(left)};
    key[0] += 0x9E3779B9;  // the golden ratio and sqrt(3) - 1: Weyl sequences, so that no two rounds share a key
    key[1] += 0xBB67AE85;
  }
  return counter;
}

class Random {
 public:
  /// `stream` says what the numbers are for, e.g. "init/layers.3.attention.wq" or "dropout/step 17".
  Random(std::uint64_t seed, std::string_view stream);

  /// 64 random bits.
  std::uint64_t bits(std::uint64_t index) const;
  /// In [0, 1): 53 and 24 random bits, every value equally likely.
  double uniform(std::uint64_t index) const;
  float uniform_float(std::uint64_t index) const;
  /// In [0, n), n >= 1, without bias: see below() in random.cpp for how it stays a function of the index alone.
  std::uint64_t below(std::uint64_t n, std::uint64_t index) const;
  /// Mean 0, standard deviation 1.
  double normal(std::uint64_t index) const;
  float normal_float(std::uint64_t index) const;

  /// out[i] is the single draw at begin + i, to the bit, at several times its speed.
  void fill_bits(std::uint64_t begin, std::span<std::uint64_t> out) const;
  void fill_uniform(std::uint64_t begin, std::span<double> out) const;
  void fill_uniform(std::uint64_t begin, std::span<float> out) const;
  void fill_below(std::uint64_t n, std::uint64_t begin, std::span<std::uint64_t> out) const;
  void fill_normal(std::uint64_t begin, std::span<double> out) const;
  void fill_normal(std::uint64_t begin, std::span<float> out) const;

  /// What the numbers are drawn for: words of the counter that keep kinds of draws apart.
  enum class Purpose : std::uint32_t {
    kBits = 1,
    kUniform,
    kUniformFloat,
    kBelow,
    kNormal,
    kNormalFloat,
    kPermutation,
    kAttention
  };
  /// The 128 bits of a block; `attempt` is below 2^24. For kinds of draws that are not above.
  PhiloxCounter block(Purpose purpose, std::uint64_t number, std::uint32_t attempt = 0) const;

 private:
  template <typename Kind>
  void fill(std::uint64_t begin, std::span<typename Kind::Value> out) const;

  PhiloxKey key_;  // key and salt together are 96 bits of hash of (seed, stream): names do not collide
  std::uint32_t salt_;
};

}  // namespace trireme
