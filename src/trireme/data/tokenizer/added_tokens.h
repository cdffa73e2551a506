// data/tokenizer/added_tokens.h -- finds tokens that stand in a text literally, before it is cut into words.
//
// The longest token at the leftmost place counts, then the search goes on behind it: what the Hugging Face library's
// automaton finds, its corner cases included.
// Depends on: description.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/tokenizer/description.h"

namespace trireme::data {

class AddedTokenFinder {
 public:
  struct Pattern {
    std::string text;  ///< as it stands in the text that is looked through
    AddedToken token;
  };
  struct Found {
    std::size_t begin = 0, end = 0;  ///< with the white space that the token takes along
    std::int32_t id = -1;            ///< -1: text between tokens
  };

  explicit AddedTokenFinder(std::vector<Pattern> patterns);

  bool empty() const { return patterns_.empty(); }
  /// The text in parts, in order.
  void find(std::string_view text, std::vector<Found>& parts) const;

 private:
  /// The longest pattern at `at`; nothing: null.
  const Pattern* longest(std::string_view text, std::size_t at) const;

  std::vector<Pattern> patterns_;          // sorted by text
  std::vector<std::uint32_t> first_[256];  // patterns by first byte, the longest first
  bool starts_[256] = {};
  int only_start_ = -1;  // the byte that all begin with, if there is one
};

}  // namespace trireme::data
