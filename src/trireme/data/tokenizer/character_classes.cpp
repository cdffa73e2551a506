#include "trireme/data/tokenizer/character_classes.h"

#include <utf8proc.h>

#include "trireme/data/tokenizer/split_pattern.h"
#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

constexpr std::uint32_t kCodePoints = 0x110000;

}  // namespace

const CharacterClasses& CharacterClasses::shared() {
  static const CharacterClasses classes;
  return classes;
}

CharacterClasses::CharacterClasses() : table_(kCodePoints, CharacterClass::kOther) {
  std::string every;
  every.reserve(std::size_t{4} * kCodePoints);
  for (std::uint32_t code = 0; code < kCodePoints; ++code)
    if (code < 0xD800 || code > 0xDFFF) append_utf8(every, code);
  const auto mark = [&](std::string_view pattern, CharacterClass is) {
    const SplitPattern runs(pattern);
    SplitPattern::Search search(runs, every);
    for (SplitPattern::Match match; search.next(match);) {
      for (std::size_t at = match.begin; at < match.end;) {
        const CodePoint c = code_point(every, at);
        table_[c.code] = is;
        at += c.bytes;
      }
    }
  };
  mark(R"(\p{L}+)", CharacterClass::kLetter);
  mark(R"(\p{N}+)", CharacterClass::kNumber);
  mark(R"(\s+)", CharacterClass::kSpace);
}

bool is_white_space(std::uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

bool is_word_character(std::uint32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // joiners, and the letters in circles and squares that Unicode calls alphabetic
      return code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) ||
             (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
             (code >= 0x1F170 && code <= 0x1F189);
  }
}

}  // namespace trireme::data
