// base/philox.h -- Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel Random
// Numbers: As Easy as 1, 2, 3" (SC 2011): a bijection of 128-bit counters for each 64-bit key, whose output passes
// BigCrush even when the counter merely counts. No state, so any element can be drawn by anyone, in any order.
// Depends on: std.
#pragma once

#include <array>
#include <cstdint>

namespace trireme {

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

}  // namespace trireme
