// kernels/cpu/attention_dropout.h -- the coin of a probability: a function of (stream, sample, head, query, key).
//
// Each (sample, head) has a stream of its own, four words drawn from the layer's: two are the key of a second Philox,
// two are half of its counter. The other half is the query's position and the number of a block of keys. A block gives
// four coins, for keys that lie 16 apart, so that a vector of blocks gives four vectors of neighbours: key 64 g + 16 w
// + l has word w of block 16 g + l. Depends on: base/philox.h. Compiled per instruction set, hence unnamed.
#pragma once

#include <cstdint>

#include "trireme/base/philox.h"

namespace trireme::kernels::cpu {
namespace {

/// The coins of query `query` and keys [first, first + count), all positions below 2^32.
[[gnu::noinline]] void draw_coins(const std::uint32_t (&stream)[4], std::uint32_t query, std::uint32_t first,
                                  std::int64_t count, std::uint32_t* out) {
  const std::uint64_t end = std::uint64_t{first} + static_cast<std::uint64_t>(count);
  for (std::uint64_t key = first / 64 * std::uint64_t{64}; key < end; key += 64) {
    alignas(64) std::uint32_t coins[64];
    for (std::uint32_t lane = 0; lane < 16; ++lane) {
      const PhiloxCounter words =
          philox({query, static_cast<std::uint32_t>(key / 4) + lane, stream[2], stream[3]}, {stream[0], stream[1]});
      coins[lane] = words[0];
      coins[16 + lane] = words[1];
      coins[32 + lane] = words[2];
      coins[48 + lane] = words[3];
    }
    const std::uint64_t from = key < first ? first : key, to = end < key + 64 ? end : key + 64;
    for (std::uint64_t i = from; i < to; ++i) out[i - first] = coins[i - key];
  }
}

}  // namespace
}  // namespace trireme::kernels::cpu
