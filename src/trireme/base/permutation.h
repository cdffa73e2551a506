// base/permutation.h -- a random permutation of 0..n-1 that takes no memory: both directions are computed.
//
// A Feistel network (after Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002) over pairs (left, right)
// with left < a, right < b and a x b just above n; values from n up are walked on until they fall below n, which stays
// a permutation. Used to shuffle data sets far larger than memory, and to find where a sample stands in the shuffle.
// Depends on: random.
#pragma once

#include <cstdint>

#include "trireme/base/random.h"

namespace trireme {

class Permutation {
 public:
  /// Of 0..n-1, n at most 2^62. A function of the stream alone: the same on every rank.
  Permutation(const Random& random, std::uint64_t n);

  std::uint64_t size() const { return n_; }
  /// The value at position i.
  std::uint64_t at(std::uint64_t i) const;
  /// The position of value v: index_of(at(i)) == i.
  std::uint64_t index_of(std::uint64_t v) const;

 private:
  std::uint64_t forward(std::uint64_t x) const;
  std::uint64_t backward(std::uint64_t y) const;
  std::uint64_t round_value(std::uint32_t round, std::uint64_t half) const;

  Random random_;
  std::uint64_t n_, a_, b_;
};

}  // namespace trireme
