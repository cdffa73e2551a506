// data/tokenizer/bpe_model.h -- byte-pair encoding of one piece of text: letters first, then merges, the first learnt
// first.
//
// Letters are bytes (byte-level vocabularies) or characters. An unknown character becomes its bytes where the
// vocabulary has a token for each (byte fallback), else the unknown token, else nothing, as the Hugging Face library
// does it. Where no merge can cross a place in a piece, the parts on both sides are encoded by themselves and looked up
// among words met before: so a document that nothing cuts into words (Llama 2) costs as little as one that a pattern
// cuts.
// Depends on: description, word_cache.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/word_cache.h"

namespace trireme::data {

/// What two neighbouring tokens merge into, and how early: a hash table that never changes.
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

class BpeModel {
 public:
  /// What encoding needs beside the model, one for each thread.
  struct Scratch {
    WordCache cache;
    std::vector<std::int32_t> letters, ranks;
    std::vector<std::int32_t> next, before;
    std::vector<std::uint64_t> heap;
  };

  /// ConfigError where the parts of the description do not go together.
  BpeModel(const BpeDescription& description, bool byte_level);

  /// Appends the tokens of one piece, which the pre-tokenizer leaves whole.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& out) const;

 private:
  struct Letter {
    std::int32_t id = -1;
    /// The only characters that merges join it to on its left, where there are few; else `cuts` is false.
    bool cuts = false;
    std::uint32_t joined[2] = {kNone, kNone};
  };
  static constexpr std::uint32_t kNone = 0xFFFF'FFFF, kDense = 0x3000;

  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& out) const;
  void find_letters(std::string_view word, std::vector<std::int32_t>& letters) const;
  void find_characters(std::string_view word, std::vector<std::int32_t>& letters) const;
  void merge_short(std::vector<std::int32_t>& letters, std::vector<std::int32_t>& ranks) const;
  void merge_long(Scratch& scratch) const;
  void find_cuts(const BpeDescription& description);
  std::size_t word_end(std::string_view piece, std::size_t begin) const;
  const Letter* letter_of(std::uint32_t code) const;

  bool byte_level_, ignore_merges_, fuse_unk_, byte_fallback_;
  bool cuts_pieces_ = false;  // find words within pieces
  std::int32_t unk_ = -1;
  std::int32_t bytes_[256];    // of a byte: byte-level letters, or fallback tokens; -1: none
  std::vector<Letter> dense_;  // characters below kDense, among them the sign that stands for spaces
  std::unordered_map<std::uint32_t, Letter> letters_;    // the other characters
  std::unordered_map<std::string, std::int32_t> whole_;  // ignore_merges: token of a whole piece, in its bytes
  PairTable merges_;
};

}  // namespace trireme::data
