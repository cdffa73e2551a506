#include "trireme/base/permutation.h"

#include <cmath>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// Four rounds are enough in theory for large halves; small sets need more before every order is likely.
constexpr std::uint32_t kRounds = 8;

std::uint64_t ceil_root(std::uint64_t n) {
  auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n)));
  while (root * root >= n && root > 0) --root;  // the double may be one off in either direction
  while (root * root < n) ++root;
  return root;
}

}  // namespace

Permutation::Permutation(const Random& random, std::uint64_t n) : random_(random), n_(n) {
  TRIREME_CHECK(n <= std::uint64_t{1} << 62, "a permutation of {} elements is beyond 2^62", n);
  a_ = ceil_root(n);
  b_ = a_ == 0 ? 0 : (n + a_ - 1) / a_;
}

std::uint64_t Permutation::at(std::uint64_t i) const {
  TRIREME_CHECK(i < n_, "position {} of a permutation of {}", i, n_);
  do {
    i = forward(i);
  } while (i >= n_);  // a x b - n < a, so this nearly never goes round, and always ends: i's own cycle holds an i < n
  return i;
}

std::uint64_t Permutation::index_of(std::uint64_t v) const {
  TRIREME_CHECK(v < n_, "value {} of a permutation of {}", v, n_);
  do {
    v = backward(v);
  } while (v >= n_);
  return v;
}

std::uint64_t Permutation::round_value(std::uint32_t round, std::uint64_t half) const {
  const PhiloxCounter w = random_.block(Random::Purpose::kPermutation, half, round);
  return std::uint64_t{w[1]} << 32 | w[0];
}

// The remainders below are biased by at most a / 2^64 < 2^-32: beyond what any shuffle could show.

std::uint64_t Permutation::forward(std::uint64_t x) const {
  std::uint64_t left = x % a_, right = x / a_;
  for (std::uint32_t round = 0; round < kRounds; round += 2) {
    left = (left + round_value(round, right) % a_) % a_;
    right = (right + round_value(round + 1, left) % b_) % b_;
  }
  return right * a_ + left;
}

std::uint64_t Permutation::backward(std::uint64_t y) const {
  std::uint64_t left = y % a_, right = y / a_;
  for (std::uint32_t round = kRounds; round > 0; round -= 2) {
    right = (right + b_ - round_value(round - 1, left) % b_) % b_;
    left = (left + a_ - round_value(round - 2, right) % a_) % a_;
  }
  return right * a_ + left;
}

}  // namespace trireme
