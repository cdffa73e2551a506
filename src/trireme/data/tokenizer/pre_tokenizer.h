// data/tokenizer/pre_tokenizer.h -- cuts a normalized text into the pieces that the model encodes one by one.
//
// Depends on: description, known_patterns, split_pattern, unicode_ranges.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/known_patterns.h"
#include "trireme/data/tokenizer/normalizer.h"

namespace trireme::data {

class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(const PreTokenizerPart& part) { add(part); }

  /// Calls `take` with each piece, none of them empty, in order. `first`: the text stands at the beginning of what was
  /// given to the tokenizer. Pieces of byte-level vocabularies are given as bytes, not as letters.
  template <typename Take>
  void cut(std::string_view text, bool first, Take&& take) const {
    if (steps_.size() == 1 && steps_[0].kind == Step::Kind::kKnown) {  // what nearly every vocabulary of today has
      const CharacterClasses& classes = CharacterClasses::shared();
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = piece_end(steps_[0].known, classes, text, begin);
        take(text.substr(begin, end - begin));
        begin = end;
      }
      return;
    }
    const std::function<void(std::string_view)> any = std::ref(take);
    run(0, text, first, any);
  }

 private:
  struct Step {
    enum class Kind : std::uint8_t { kKnown, kPattern, kPrefixSpace, kMetaspace, kClasses, kPunctuation };
    /// What a character is to its neighbours. Runs of one class are pieces.
    enum class Class : std::uint8_t { kDropped, kAlone, kRun, kOtherRun };
    Kind kind;
    Class (*class_of)(std::uint32_t code) = nullptr;  ///< kClasses
    KnownPattern known = KnownPattern::kGpt2;
    std::optional<SplitPattern> regex;
    std::string literal;  ///< kPattern without regex
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    MetaspacePart metaspace;
    std::optional<Replacement> spaces;  ///< kMetaspace
  };
  using Take = std::function<void(std::string_view)>;

  void add(const PreTokenizerPart& part);
  void add_pattern(const Pattern& pattern, SplitBehavior behavior, bool invert);
  void add_punctuation(SplitBehavior behavior);
  void add_classes(Step::Class (*class_of)(std::uint32_t code));
  void run(std::size_t step, std::string_view text, bool first, const Take& take) const;
  void run_pattern(std::size_t number, std::string_view text, bool first, const Take& take) const;
  void run_classes(std::size_t number, std::string_view text, bool first, const Take& take) const;
  void run_metaspace(std::size_t number, std::string_view text, bool first, const Take& take) const;

  std::vector<Step> steps_;
};

}  // namespace trireme::data
