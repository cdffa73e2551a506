// data/tokenizer/normalizer.h -- what is done to a text before it is cut: Unicode's form C, a prefix, replacements.
//
// Depends on: description, split_pattern, utf8proc.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/tokenizer/description.h"
#include "trireme/data/tokenizer/split_pattern.h"

namespace trireme::data {

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
  explicit Normalizer(const NormalizerPart& part) { add(part); }

  bool does_nothing() const { return steps_.empty(); }
  /// `text` itself, or what it becomes, kept in `memory`.
  std::string_view apply(std::string_view text, std::string& memory) const;

 private:
  struct Step {
    NormalizerPart::Kind kind;
    std::string prefix;
    std::optional<Replacement> replacement;
  };
  void add(const NormalizerPart& part);

  std::vector<Step> steps_;
};

/// Whether a text can be told to be in form C by its bytes alone: nothing at or above U+0300, where marks begin.
bool is_surely_nfc(std::string_view text);
std::string to_nfc(std::string_view text);

}  // namespace trireme::data
