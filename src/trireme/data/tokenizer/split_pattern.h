// data/tokenizer/split_pattern.h -- a regular expression of a tokenizer.json, run by PCRE2.
//
// The files are written for Oniguruma, in Ruby's dialect. What both engines mean alike is passed on, \s is spelt out
// (see character_classes.h), and everything else is refused with its place in the pattern: ^ $ . \w \b, nested classes,
// references, possessive or named groups. A pattern that matches the empty text is refused too.
// Depends on: PCRE2, formats/format_error.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::data {

class SplitPattern {
 public:
  struct Match {
    std::size_t begin = 0, end = 0;
  };

  /// ConfigError with the place in the pattern.
  explicit SplitPattern(std::string_view pattern);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  /// Looks through one text; as many as you like at once, on any threads.
  class Search;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

class SplitPattern::Search {
 public:
  /// Both stay borrowed; `text` is UTF-8.
  Search(const SplitPattern& pattern, std::string_view text);
  ~Search();
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  /// The next match after the last one; false when there is none.
  bool next(Match& match);

 private:
  Compiled& compiled_;
  std::string_view text_;
  std::size_t from_ = 0;
  void* memory_;  // PCRE2's, for this search
};

/// The pattern as PCRE2 is given it.
std::string to_pcre2(std::string_view pattern);

}  // namespace trireme::data
