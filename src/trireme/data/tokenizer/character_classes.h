// data/tokenizer/character_classes.h -- letter, number or white space: the three classes that split patterns ask for.
//
// There is one source of Unicode's categories, PCRE2: the table is made by asking it once for every character (some ten
// milliseconds), so splitting by hand and by pattern cannot disagree. White space is Unicode's White_Space, which the
// Hugging Face library means by \s; PCRE2's own \s also holds U+180E.
// Depends on: PCRE2.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::data {

enum class CharacterClass : std::uint8_t { kOther, kLetter, kNumber, kSpace };

class CharacterClasses {
 public:
  /// The table of this process, made by the first caller.
  static const CharacterClasses& shared();

  CharacterClass of(std::uint32_t code) const { return table_[code]; }

 private:
  CharacterClasses();
  std::vector<CharacterClass> table_;  // every code point
};

/// Members of a PCRE2 character class: Unicode's White_Space.
inline constexpr std::string_view kWhiteSpaceMembers =
    R"(\x{09}-\x{0d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

bool is_white_space(std::uint32_t code);
/// Part of a word, as Rust's regular expressions have \w: letters, marks, digits, connecting signs and joiners.
bool is_word_character(std::uint32_t code);

}  // namespace trireme::data
