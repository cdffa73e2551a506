// data/tokenizer/normalizer.h -- what is done to a text before it is cut: Unicode's normal forms, lower case, accents,
// BERT's cleaning, SentencePiece's character map, a prefix, replacements.
//
// Depends on: description, charsmap, split_pattern, unicode_ranges, utf8proc.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/tokenizer/charsmap.h"
#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/split_pattern.h"
#include "trireme/data/tokenizer/unicode_ranges.h"

namespace trireme::data {

enum class NormalForm : std::uint8_t { kC, kD, kKc, kKd };

/// Replaces every match, from left to right.
class Replacement {
 public:
  Replacement(const Pattern& pattern, std::string content);
  std::string apply(std::string_view text) const;

 private:
  std::string literal_, content_;
  std::optional<SplitPattern> regex_;
};

class Normalizer {
 public:
  Normalizer() = default;
  /// ConfigError where a character map is damaged.
  explicit Normalizer(const NormalizerPart& part) { add(part); }

  bool does_nothing() const { return steps_.empty(); }
  /// `text` itself, or what it becomes, kept in `memory`.
  std::string_view apply(std::string_view text, std::string& memory) const;

 private:
  struct Step {
    enum class Kind : std::uint8_t {
      kForm,
      kLowercase,
      kDrop,             ///< every character of a set
      kWhiteSpace,       ///< becomes a space
      kSpaceIdeographs,  ///< a space before and after each
      kNmt,
      kStrip,
      kCharsmap,
      kPrepend,
      kReplace,
    };
    Kind kind;
    NormalForm form = NormalForm::kC;
    const CodePointSet* dropped = nullptr;
    bool left = true, right = true;  ///< kStrip: where
    std::string prefix = {};
    std::optional<Replacement> replacement = {};
    std::optional<Charsmap> charsmap = {};
  };
  void add(const NormalizerPart& part);
  void add_bert(const NormalizerPart& part);

  std::vector<Step> steps_;
};

/// Whether a text can be told to be in form C by its bytes alone: nothing at or above U+0300, where marks begin.
bool is_surely_nfc(std::string_view text);
std::string to_normal_form(std::string_view text, NormalForm form);
inline std::string to_nfc(std::string_view text) { return to_normal_form(text, NormalForm::kC); }
/// Character by character, as the library does it: no sigma at the end of a word.
std::string to_lowercase(std::string_view text);

}  // namespace trireme::data
