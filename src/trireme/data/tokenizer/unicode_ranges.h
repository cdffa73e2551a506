// data/tokenizer/unicode_ranges.h -- classes of characters exactly as the Hugging Face library has them.
//
// Its crates know the Unicode of 2015 to 2017, whatever the system's libraries know, so the tables are written out: a
// vocabulary gives the same tokens on every system.
// Depends on: std.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trireme::data {

struct CodeRange {
  std::uint32_t first, last;
};

class CodePointSet {
 public:
  explicit CodePointSet(std::span<const CodeRange> ranges) : bits_(kCodePoints / 64) {
    for (const CodeRange& range : ranges)
      for (std::uint32_t code = range.first; code <= range.last; ++code) bits_[code / 64] |= bit(code);
  }
  bool has(std::uint32_t code) const { return (bits_[code / 64] & bit(code)) != 0; }

 private:
  static constexpr std::uint32_t kCodePoints = 0x110000;
  static std::uint64_t bit(std::uint32_t code) { return std::uint64_t{1} << code % 64; }
  std::vector<std::uint64_t> bits_;
};

/// What BERT's clean_text takes away: categories Cc, Cf and Co but for tab and line ends, and U+FFFD.
const CodePointSet& control_characters();
/// What BERT's strip_accents takes away after form D: category Mn.
const CodePointSet& nonspacing_marks();
/// What StripAccents takes away: categories Mn, Mc and Me.
const CodePointSet& combining_marks();
/// Characters with a decomposition or a combining class that normal forms do not know: they stay where and what they
/// are.
const CodePointSet& left_by_normal_forms();
/// Categories P, and the signs of ASCII.
const CodePointSet& punctuation();

}  // namespace trireme::data
