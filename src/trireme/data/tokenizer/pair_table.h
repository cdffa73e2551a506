// data/tokenizer/pair_table.h -- what two neighbouring tokens merge into, and how early: a hash table that never
// changes.
//
// Depends on: std.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace trireme::data {

class PairTable {
 public:
  static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
  struct Merge {
    std::int32_t rank = kNever, result = -1;
  };

  /// For that many pairs.
  explicit PairTable(std::size_t pairs = 0) : bits_(std::bit_width(2 * pairs + 1)), entries_(std::size_t{1} << bits_) {}

  /// A pair that is there already gets the new merge: the last one in a file counts.
  void insert(std::int32_t left, std::int32_t right, Merge merge) {
    Entry& entry = entries_[slot(key_of(left, right))];
    entry = {key_of(left, right), merge};
  }
  /// rank kNever: they do not merge.
  Merge find(std::int32_t left, std::int32_t right) const { return entries_[slot(key_of(left, right))].merge; }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // tokens are not negative
  struct Entry {
    std::uint64_t key = kEmpty;
    Merge merge;
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t key) const {
    std::size_t at = static_cast<std::size_t>((key ^ key >> 29) * 0x9E37'79B9'7F4A'7C15U >> (64 - bits_));
    while (entries_[at].key != key && entries_[at].key != kEmpty) at = (at + 1) & (entries_.size() - 1);
    return at;
  }

  int bits_;
  std::vector<Entry> entries_;
};

}  // namespace trireme::data
