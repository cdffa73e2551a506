// data/tokenizer/token_trie.h -- the tokens that a text begins with, found byte by byte.
//
// A table from (node, byte) to the next node, with open addressing: a walk touches one line of the cache a byte, and
// building takes no more than the vocabulary's bytes.
// Depends on: std.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::data {

class TokenTrie {
 public:
  static constexpr std::uint32_t kRoot = 0, kNowhere = 0xFFFF'FFFF;

  /// For tokens of so many bytes altogether.
  explicit TokenTrie(std::size_t bytes = 0)
      : bits_(std::bit_width(2 * bytes + 1)), entries_(std::size_t{1} << bits_), ids_(1, -1) {
    first_.fill(kNowhere);
  }

  /// Of the same text twice, the last one counts. The empty text is never found.
  void insert(std::string_view token, std::int32_t id) {
    std::uint32_t node = kRoot;
    for (const char byte : token) {
      std::uint32_t& next = slot(node, static_cast<unsigned char>(byte));
      if (next == kNowhere) {
        next = static_cast<std::uint32_t>(ids_.size());
        ids_.push_back(-1);
      }
      node = next;
    }
    if (node != kRoot) ids_[node] = id;
  }

  std::uint32_t next(std::uint32_t node, char byte) const {
    const auto label = static_cast<unsigned char>(byte);
    return node == kRoot ? first_[label] : entries_[find(key_of(node, label))].next;
  }
  /// The token that ends at a node; -1: none.
  std::int32_t id(std::uint32_t node) const { return ids_[node]; }

  /// The longest token that `text` begins with: its bytes, and its id; no bytes: none.
  struct Longest {
    std::size_t bytes = 0;
    std::int32_t id = -1;
  };
  Longest longest(std::string_view text) const {
    Longest found;
    std::uint32_t node = kRoot;
    for (std::size_t at = 0; at < text.size() && (node = next(node, text[at])) != kNowhere; ++at)
      if (ids_[node] >= 0) found = {at + 1, ids_[node]};
    return found;
  }

 private:
  struct Entry {
    std::uint64_t key = 0;  // no node beside the root has the key 0
    std::uint32_t next = kNowhere;
  };

  static std::uint64_t key_of(std::uint32_t node, unsigned char label) { return std::uint64_t{node} << 8 | label; }
  std::size_t find(std::uint64_t key) const {
    auto at = static_cast<std::size_t>((key ^ key >> 29) * 0x9E37'79B9'7F4A'7C15U >> (64 - bits_));
    while (entries_[at].key != key && entries_[at].key != 0) at = (at + 1) & (entries_.size() - 1);
    return at;
  }
  std::uint32_t& slot(std::uint32_t node, unsigned char label) {
    if (node == kRoot) return first_[label];
    Entry& entry = entries_[find(key_of(node, label))];
    entry.key = key_of(node, label);
    return entry.next;
  }

  int bits_;
  std::vector<Entry> entries_;
  std::array<std::uint32_t, 256> first_;
  std::vector<std::int32_t> ids_;  // by node
};

}  // namespace trireme::data
