#include "trireme/data/tokenizer/known_patterns.h"

#include <array>

#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

using enum CharacterClass;

/// One step of looking at a text.
struct Seen {
  CharacterClass is = kSpace;
  std::uint32_t bytes = 0;  // 0: the text has ended
};

class Cutter {
 public:
  Cutter(const CharacterClasses& classes, std::string_view text) : classes_(classes), text_(text) {}

  char byte(std::size_t at) const { return at < text_.size() ? text_[at] : '\0'; }
  bool newline(std::size_t at) const { return byte(at) == '\n' || byte(at) == '\r'; }
  Seen see(std::size_t at) const {
    if (at >= text_.size()) return {};
    const CodePoint c = code_point(text_, at);
    return {classes_.of(c.code), c.bytes};
  }
  /// The end of the run of one class that `at` is in.
  std::size_t run_end(std::size_t at, CharacterClass is) const {
    for (;;) {
      const Seen seen = see(at);
      if (seen.bytes == 0 || seen.is != is) return at;
      at += seen.bytes;
    }
  }
  std::size_t numbers_end(std::size_t at, int most) const {
    for (int count = 0; count < most; ++count) {
      const Seen seen = see(at);
      if (seen.bytes == 0 || seen.is != kNumber) break;
      at += seen.bytes;
    }
    return at;
  }

  /// 's 't 're 've 'm 'll 'd after an apostrophe at `at`: its end, or 0. In any case where `fold`, and then the long s
  /// (U+017F) is an s too.
  std::size_t contraction_end(std::size_t at, bool fold) const {
    const auto letter = [&](std::size_t i) {
      const char c = byte(i);
      return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    const char first = letter(at + 1), second = letter(at + 2);
    switch (first) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return at + 2;
      case 'r':
      case 'v':
        return second == 'e' ? at + 3 : 0;
      case 'l':
        return second == 'l' ? at + 3 : 0;
      default:
        return fold && first == '\xC5' && byte(at + 2) == '\xBF' ? at + 3 : 0;
    }
  }

  /// White space that no other alternative took: \s+(?!\S)|\s+. A run before something else leaves its last character,
  /// which mostly is the space that the next word takes.
  std::size_t space_end(std::size_t begin, std::size_t end) const {
    if (end == text_.size()) return end;
    const std::size_t last = end - code_point_before(text_, end).bytes;
    return last > begin ? last : end;
  }

  /// The end of the last newline of the white space from `begin` to `end`; 0 when there is none.
  std::size_t last_newline(std::size_t begin, std::size_t end) const {
    for (std::size_t at = end; at > begin; --at)
      if (newline(at - 1)) return at;
    return 0;
  }

 private:
  const CharacterClasses& classes_;
  std::string_view text_;
};

std::size_t gpt2_end(const Cutter& cut, std::size_t begin) {
  if (cut.byte(begin) == '\'') {
    if (const std::size_t end = cut.contraction_end(begin, /*fold=*/false)) return end;
  }
  const bool space = cut.byte(begin) == ' ';
  const Seen first = cut.see(begin + (space ? 1 : 0));
  if (first.bytes != 0 && first.is != kSpace) return cut.run_end(begin + (space ? 1 : 0) + first.bytes, first.is);
  return cut.space_end(begin, cut.run_end(begin, kSpace));
}

std::size_t llama3_end(const Cutter& cut, std::size_t begin, int most_numbers) {
  if (cut.byte(begin) == '\'') {
    if (const std::size_t end = cut.contraction_end(begin, /*fold=*/true)) return end;
  }
  const Seen first = cut.see(begin);
  if (first.is == kLetter) return cut.run_end(begin + first.bytes, kLetter);
  if (first.is == kNumber) return cut.numbers_end(begin, most_numbers);
  const Seen second = cut.see(begin + first.bytes);
  if (second.bytes != 0 && second.is == kLetter && !cut.newline(begin))
    return cut.run_end(begin + first.bytes + second.bytes, kLetter);
  const bool space = cut.byte(begin) == ' ';
  if (first.is == kOther || (space && second.bytes != 0 && second.is == kOther)) {
    std::size_t end = cut.run_end(begin + first.bytes, kOther);
    while (cut.newline(end)) ++end;
    return end;
  }
  const std::size_t end = cut.run_end(begin, kSpace);
  if (const std::size_t newline = cut.last_newline(begin, end)) return newline;
  return cut.space_end(begin, end);
}

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::array<Named<KnownPattern>, 3> kNames{
    {{"gpt2", KnownPattern::kGpt2}, {"llama3", KnownPattern::kLlama3}, {"qwen", KnownPattern::kQwen}}};

}  // namespace

std::span<const Named<KnownPattern>> enum_names(std::type_identity<KnownPattern>) { return kNames; }

std::string_view pattern_text(KnownPattern pattern) {
  switch (pattern) {
    case KnownPattern::kGpt2:
      return kGpt2;
    case KnownPattern::kLlama3:
      return kLlama3;
    case KnownPattern::kQwen:
      return kQwen;
  }
  return {};
}

std::optional<KnownPattern> known_pattern(std::string_view text) {
  for (const auto& [name, pattern] : kNames)
    if (pattern_text(pattern) == text) return pattern;
  return std::nullopt;
}

std::size_t piece_end(KnownPattern pattern, const CharacterClasses& classes, std::string_view text, std::size_t begin) {
  const Cutter cut(classes, text);
  switch (pattern) {
    case KnownPattern::kGpt2:
      return gpt2_end(cut, begin);
    case KnownPattern::kLlama3:
      return llama3_end(cut, begin, 3);
    case KnownPattern::kQwen:
      return llama3_end(cut, begin, 1);
  }
  return text.size();
}

}  // namespace trireme::data
