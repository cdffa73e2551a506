#include "trireme/data/tokenizer/split_pattern.h"

#include "tests/data/tokenizer_samples.h"
#include "trireme/data/tokenizer/known_patterns.h"

namespace trireme::data {
namespace {

using Pieces = std::vector<std::string>;

Pieces by_pattern(const SplitPattern& pattern, std::string_view text) {
  Pieces pieces;
  SplitPattern::Search search(pattern, text);
  std::size_t done = 0;
  for (SplitPattern::Match match; search.next(match); done = match.end) {
    EXPECT_EQ(match.begin, done) << "the known patterns leave nothing out";
    pieces.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  EXPECT_EQ(done, text.size());
  return pieces;
}

Pieces by_hand(KnownPattern pattern, std::string_view text) {
  Pieces pieces;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = piece_end(pattern, CharacterClasses::shared(), text, begin);
    EXPECT_GT(end, begin);
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

TEST(KnownPatterns, CutAsTheEngineDoes) {
  std::mt19937_64 draw(7);
  for (const auto& [name, known] : enum_names(std::type_identity<KnownPattern>())) {
    const SplitPattern pattern(pattern_text(known));
    EXPECT_EQ(known_pattern(pattern_text(known)), known);
    for (int round = 0; round < 3000; ++round) {
      const std::string text = random_text(draw, 1 + draw() % 24);
      ASSERT_EQ(by_hand(known, text), by_pattern(pattern, text)) << name << " " << formats::python_string(text);
    }
  }
}

// Every character, alone, before and after a letter, a space and a newline.
TEST(KnownPatterns, CutEveryCharacterAsTheEngineDoes) {
  for (const auto& [name, known] : enum_names(std::type_identity<KnownPattern>())) {
    const SplitPattern pattern(pattern_text(known));
    std::string text;
    for (std::uint32_t code = 0; code < 0x110000; code += code < 0x3100 ? 1 : 61) {
      if (code >= 0xD800 && code <= 0xDFFF) continue;
      for (const std::string_view around : {"a", " ", "\n", "!"}) {
        append_utf8(text, code);
        text += around;
      }
    }
    ASSERT_TRUE(by_hand(known, text) == by_pattern(pattern, text)) << name;
  }
}

TEST(KnownPatterns, AreKnownLetterForLetterOnly) {
  EXPECT_EQ(known_pattern(std::string(pattern_text(KnownPattern::kQwen)) + " "), std::nullopt);
}

TEST(SplitPattern, SpellsOutWhiteSpace) {
  const SplitPattern space(R"(\s)");
  for (std::uint32_t code = 1; code < 0x3100; ++code) {
    std::string text;
    append_utf8(text, code);
    SplitPattern::Match match;
    EXPECT_EQ(SplitPattern::Search(space, text).next(match), is_white_space(code)) << code;
  }
}

TEST(SplitPattern, EndsAPatternThatBacktracksForEver) {
  const SplitPattern pattern("(?:(?:a|aa)+)+b");
  const std::string text = std::string(5000, 'a') + "cb";  // with the b, or the engine would know at once
  SplitPattern::Match match;
  EXPECT_NE(words_of([&] { SplitPattern::Search(pattern, text).next(match); }).find("a split pattern failed"),
            std::string::npos);
}

}  // namespace
}  // namespace trireme::data
