#include "trireme/base/random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "trireme/base/error.h"
#include "trireme/base/random_math.h"

namespace trireme {
namespace {

using Purpose = Random::Purpose;

/// Where a stream's numbers are: everything of a counter but the number of the block.
struct Origin {
  PhiloxKey key;
  std::uint32_t salt;
};

[[gnu::always_inline]] inline PhiloxCounter block_at(const Origin& origin, Purpose purpose, std::uint64_t number,
                                                     std::uint32_t attempt) {
  return philox({static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32), origin.salt,
                 static_cast<std::uint32_t>(purpose) << 24 | attempt},
                origin.key);
}

[[gnu::always_inline]] inline std::uint64_t joined(std::uint32_t low, std::uint32_t high) {
  return std::uint64_t{high} << 32 | low;
}

// 2^52 + n has n in its low bits: a conversion from whole numbers that SSE2 and AVX2 can do in lanes.
[[gnu::always_inline]] inline double to_double(std::uint32_t n) {
  return std::bit_cast<double>(0x4330000000000000 | std::uint64_t{n}) - 4503599627370496.0;
}
// The 53 high bits, in two exact pieces.
[[gnu::always_inline]] inline double unit_of(std::uint32_t low, std::uint32_t high) {
  return to_double(high) * 0x1p-32 + to_double(low >> 11) * 0x1p-53;
}

// So many blocks are made at a time, word by word in lanes; they stay in the first-level cache.
constexpr std::size_t kBatch = 64;
using Words = std::array<std::array<std::uint32_t, kBatch>, 4>;  // [word][block]

// Each kind says how many draws a block gives and what they are: take() for one block, take_batch() for many, the same
// bits.

struct BitsKind {
  using Value = std::uint64_t;
  static constexpr Purpose kPurpose = Purpose::kBits;
  static constexpr std::size_t kPerBlock = 2;
  [[gnu::always_inline]] static void take(const PhiloxCounter& w, Value* out) {
    out[0] = joined(w[0], w[1]);
    out[1] = joined(w[2], w[3]);
  }
};

struct UniformKind {
  using Value = double;
  static constexpr Purpose kPurpose = Purpose::kUniform;
  static constexpr std::size_t kPerBlock = 2;
  [[gnu::always_inline]] static void take(const PhiloxCounter& w, Value* out) {
    out[0] = unit_of(w[0], w[1]);
    out[1] = unit_of(w[2], w[3]);
  }
};

struct UniformFloatKind {
  using Value = float;
  static constexpr Purpose kPurpose = Purpose::kUniformFloat;
  static constexpr std::size_t kPerBlock = 4;
  [[gnu::always_inline]] static void take(const PhiloxCounter& w, Value* out) {
    // 24 bits fit a signed 32-bit number, which has a conversion in lanes.
    for (std::size_t i = 0; i < 4; ++i) out[i] = static_cast<float>(static_cast<std::int32_t>(w[i] >> 8)) * 0x1p-24F;
  }
};

// Box and Muller: uniform u in (0, 1] and turns in [0, 1) become two independent normal numbers, in place.
[[gnu::always_inline]] inline void box_muller(double* u, double* turns, std::size_t pairs) {
  for (std::size_t i = 0; i < pairs; ++i) u[i] = -2.0 * random_math::log(u[i]);
  random_math::square_roots(u, pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    const auto [sine, cosine] = random_math::sin_cos_of_turns(turns[i]);
    turns[i] = u[i] * sine;
    u[i] *= cosine;
  }
}

struct NormalKind {
  using Value = double;
  static constexpr Purpose kPurpose = Purpose::kNormal;
  static constexpr std::size_t kPerBlock = 2;
  [[gnu::always_inline]] static double above_zero(std::uint32_t low, std::uint32_t high) {
    return unit_of(low, high) + 0x1p-53;
  }
  [[gnu::always_inline]] static void take(const PhiloxCounter& w, Value* out) {
    out[0] = above_zero(w[0], w[1]);
    out[1] = unit_of(w[2], w[3]);
    box_muller(&out[0], &out[1], 1);
  }
  [[gnu::always_inline]] static void take_batch(const Words& w, std::size_t blocks, Value* out) {
    alignas(64) std::array<double, kBatch> u, turns;
    for (std::size_t b = 0; b < kBatch; ++b) u[b] = above_zero(w[0][b], w[1][b]);
    for (std::size_t b = 0; b < kBatch; ++b) turns[b] = unit_of(w[2][b], w[3][b]);
    box_muller(u.data(), turns.data(), kBatch);
    for (std::size_t b = 0; b < blocks; ++b) {
      out[2 * b] = u[b];
      out[2 * b + 1] = turns[b];
    }
  }
};

struct NormalFloatKind {
  using Value = float;
  static constexpr Purpose kPurpose = Purpose::kNormalFloat;
  static constexpr std::size_t kPerBlock = 4;
  // 32 bits reach 6.7 standard deviations; a float's 24 would end at 5.8, within what a large tensor draws. Hence
  // double until the end.
  [[gnu::always_inline]] static double above_zero(std::uint32_t word) { return to_double(word) * 0x1p-32 + 0x1p-32; }
  [[gnu::always_inline]] static double turns_of(std::uint32_t word) { return to_double(word) * 0x1p-32; }

  [[gnu::always_inline]] static void take(const PhiloxCounter& w, Value* out) {
    std::array<double, 2> u = {above_zero(w[0]), above_zero(w[2])}, turns = {turns_of(w[1]), turns_of(w[3])};
    box_muller(u.data(), turns.data(), 2);
    for (std::size_t i = 0; i < 2; ++i) {
      out[2 * i] = static_cast<float>(u[i]);
      out[2 * i + 1] = static_cast<float>(turns[i]);
    }
  }
  [[gnu::always_inline]] static void take_batch(const Words& w, std::size_t blocks, Value* out) {
    alignas(64) std::array<double, 2 * kBatch> u, turns;  // the first pair of every block, then the second
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::size_t b = 0; b < kBatch; ++b) u[i * kBatch + b] = above_zero(w[2 * i][b]);
      for (std::size_t b = 0; b < kBatch; ++b) turns[i * kBatch + b] = turns_of(w[2 * i + 1][b]);
    }
    box_muller(u.data(), turns.data(), 2 * kBatch);
    for (std::size_t b = 0; b < blocks; ++b) {
      out[4 * b] = static_cast<float>(u[b]);
      out[4 * b + 1] = static_cast<float>(turns[b]);
      out[4 * b + 2] = static_cast<float>(u[kBatch + b]);
      out[4 * b + 3] = static_cast<float>(turns[kBatch + b]);
    }
  }
};

template <typename Kind>
[[gnu::always_inline]] inline void whole_blocks_body(const Origin& origin, std::uint64_t first, std::size_t blocks,
                                                     typename Kind::Value* out) {
  alignas(64) Words words;
  for (std::size_t done = 0; done < blocks; done += kBatch) {
    const std::size_t count = std::min(kBatch, blocks - done);
    for (std::size_t b = 0; b < kBatch; ++b) {  // always the full batch: a fixed count is what vectorises best
      const PhiloxCounter w = block_at(origin, Kind::kPurpose, first + done + b, 0);
      for (std::size_t i = 0; i < 4; ++i) words[i][b] = w[i];
    }
    auto* const begin = out + done * Kind::kPerBlock;
    if constexpr (requires { Kind::take_batch(words, count, begin); }) {
      Kind::take_batch(words, count, begin);
    } else {
      for (std::size_t b = 0; b < count; ++b) {
        Kind::take({words[0][b], words[1][b], words[2][b], words[3][b]}, begin + b * Kind::kPerBlock);
      }
    }
  }
}

#if defined(__x86_64__)
// The same source once more for AVX2, without fused multiply-add, which would change the bits.
template <typename Kind>
[[gnu::target("avx2")]] void whole_blocks_avx2(const Origin& origin, std::uint64_t first, std::size_t blocks,
                                               typename Kind::Value* out) {
  whole_blocks_body<Kind>(origin, first, blocks, out);
}
#endif

template <typename Kind>
void whole_blocks(const Origin& origin, std::uint64_t first, std::size_t blocks, typename Kind::Value* out) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return whole_blocks_avx2<Kind>(origin, first, blocks, out);
#endif
  whole_blocks_body<Kind>(origin, first, blocks, out);
}

template <typename Kind>
typename Kind::Value single(const Origin& origin, std::uint64_t index) {
  std::array<typename Kind::Value, Kind::kPerBlock> values;
  Kind::take(block_at(origin, Kind::kPurpose, index / Kind::kPerBlock, 0), values.data());
  return values[index % Kind::kPerBlock];
}

}  // namespace

Random::Random(std::uint64_t seed, std::string_view stream) {
  // Philox as a hash: eight bytes of the name are the key under which the state is scrambled, and the old state is
  // mixed in again so that the step cannot be undone (Davies and Meyer). The length first: "a" and "a\0" differ.
  PhiloxCounter state = philox({static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                                static_cast<std::uint32_t>(stream.size()), 0},
                               {0x7472'6972, 0x656D'6531});
  for (std::size_t begin = 0; begin < stream.size(); begin += 8) {
    PhiloxKey chunk = {0, 0};
    const std::string_view part = stream.substr(begin, 8);
    for (std::size_t i = 0; i < part.size(); ++i) {
      chunk[i / 4] |= std::uint32_t{static_cast<unsigned char>(part[i])} << (8 * (i % 4));
    }
    const PhiloxCounter next = philox(state, chunk);
    for (std::size_t i = 0; i < 4; ++i) state[i] ^= next[i];
  }
  key_ = {state[0], state[1]};
  salt_ = state[2];
}

PhiloxCounter Random::block(Purpose purpose, std::uint64_t number, std::uint32_t attempt) const {
  return block_at({key_, salt_}, purpose, number, attempt);
}

std::uint64_t Random::bits(std::uint64_t index) const { return single<BitsKind>({key_, salt_}, index); }
double Random::uniform(std::uint64_t index) const { return single<UniformKind>({key_, salt_}, index); }
float Random::uniform_float(std::uint64_t index) const { return single<UniformFloatKind>({key_, salt_}, index); }
double Random::normal(std::uint64_t index) const { return single<NormalKind>({key_, salt_}, index); }
float Random::normal_float(std::uint64_t index) const { return single<NormalFloatKind>({key_, salt_}, index); }

std::uint64_t Random::below(std::uint64_t n, std::uint64_t index) const {
  TRIREME_CHECK(n > 0, "there is no whole number below 0 to draw");
  // Lemire, "Fast Random Integer Generation in an Interval" (2019): the high half of bits x n, where the low half shows
  // the few inputs that would make some results likelier; those are drawn again. Drawing again must not take the next
  // index's numbers, so each attempt has blocks of its own: the attempt is part of the counter.
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t biased = (0 - n) % n;  // 2^64 mod n
  for (std::uint32_t attempt = 0;; ++attempt) {
    const PhiloxCounter w = block(Purpose::kBelow, index / 2, attempt);
    const std::size_t half = index % 2 * 2;
    const Wide product = static_cast<Wide>(joined(w[half], w[half + 1])) * n;
    if (static_cast<std::uint64_t>(product) >= biased) return static_cast<std::uint64_t>(product >> 64);
  }
}

template <typename Kind>
void Random::fill(std::uint64_t begin, std::span<typename Kind::Value> out) const {
  const Origin origin{key_, salt_};
  std::size_t done = 0;
  for (; done < out.size() && (begin + done) % Kind::kPerBlock != 0; ++done) {
    out[done] = single<Kind>(origin, begin + done);
  }
  const std::size_t blocks = (out.size() - done) / Kind::kPerBlock;
  whole_blocks<Kind>(origin, (begin + done) / Kind::kPerBlock, blocks, out.data() + done);
  for (done += blocks * Kind::kPerBlock; done < out.size(); ++done) out[done] = single<Kind>(origin, begin + done);
}

void Random::fill_bits(std::uint64_t begin, std::span<std::uint64_t> out) const { fill<BitsKind>(begin, out); }
void Random::fill_uniform(std::uint64_t begin, std::span<double> out) const { fill<UniformKind>(begin, out); }
void Random::fill_uniform(std::uint64_t begin, std::span<float> out) const { fill<UniformFloatKind>(begin, out); }
void Random::fill_normal(std::uint64_t begin, std::span<double> out) const { fill<NormalKind>(begin, out); }
void Random::fill_normal(std::uint64_t begin, std::span<float> out) const { fill<NormalFloatKind>(begin, out); }

void Random::fill_below(std::uint64_t n, std::uint64_t begin, std::span<std::uint64_t> out) const {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = below(n, begin + i);
}

}  // namespace trireme
