#include "trireme/data/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <cstdint>
#include <mutex>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/data/tokenizer/character_classes.h"
#include "trireme/formats/format_error.h"

namespace trireme::data {
namespace {

/// A match that backtracks without end is an error, not a hang.
constexpr std::uint32_t kMostSteps = 5'000'000, kMostHeapKib = 512 * 1024;
constexpr std::size_t kLongestPattern = 10'000;

[[noreturn]] void refuse(std::string_view pattern, std::size_t at, std::string_view what) {
  throw ConfigError(fmt::format("the pattern {}: {} (character {} of the pattern)", formats::shown(pattern), what, at));
}

/// Walks over the pattern once and writes PCRE2's.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  char peek(std::size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  void copy(std::size_t count = 1) {
    out_.append(in_, at_, count);
    at_ += count;
  }
  [[noreturn]] void fail(std::string_view what) const { refuse(in_, at_, what); }

  void step() {
    switch (peek()) {
      case '\\':
        return escape(/*in_class=*/false);
      case '[':
        return character_class();
      case '(':
        return group();
      case '^':
      case '$':
      case '.':
        fail(fmt::format("'{}' is not supported", peek()));
      case '*':
      case '+':
      case '?':
        copy();
        return after_quantifier();
      case '{':
        return braces();
      default:
        copy();
    }
  }

  // "a+*" and the like mean different things in the two dialects; "a+?" is the same lazy match in both.
  void after_quantifier() {
    if (peek() == '?') copy();
    if (peek() == '+' || peek() == '*' || peek() == '?') fail("a quantifier after a quantifier is not supported");
  }

  void braces() {
    std::size_t length = 1;
    while (std::isdigit(static_cast<unsigned char>(peek(length))) != 0 || peek(length) == ',') ++length;
    const bool fine = length > 1 && peek(length) == '}' && peek(1) != ',';
    if (!fine) fail("'{' must begin {n}, {n,} or {n,m}; for the sign itself write \\{");
    copy(length + 1);
    // Ruby takes {n}+ for a repeated repetition, PCRE2 for a possessive one; {n}? too differs.
    if (peek() == '+' || peek() == '*' || peek() == '?') fail("a quantifier after a quantifier is not supported");
  }

  void group() {
    if (peek(1) != '?') return copy();
    for (const std::string_view open : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
      if (in_.substr(at_).starts_with(open)) return copy(open.size());
    }
    fail("this kind of group is not supported");
  }

  void escape(bool in_class) {
    const char c = peek(1);
    if (c == 's' || c == 'S') {
      if (in_class && c == 'S') fail("\\S inside [...] is not supported");
      out_ +=
          in_class ? std::string(kWhiteSpaceMembers) : fmt::format("[{}{}]", c == 'S' ? "^" : "", kWhiteSpaceMembers);
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      const std::size_t close = in_.find('}', at_);
      if (peek(2) != '{' || close == in_.npos) fail("\\p must be followed by {...}");
      if (peek(3) == '^') fail("\\p{^...} is not supported; write \\P{...}");
      copy(close + 1 - at_);
    } else if (std::string_view("dDrntfv").find(c) != std::string_view::npos && c != '\0') {
      if (c == 'v') {  // the vertical tab; to PCRE2 every vertical space
        out_ += "\\x{0b}";
        at_ += 2;
      } else {
        copy(2);
      }
    } else if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80) {
      fail(c == '\0' ? "the pattern ends with a backslash" : fmt::format("the escape \\{} is not supported", c));
    } else {
      copy(2);
    }
  }

  void character_class() {
    copy();
    if (peek() == '^') copy();
    if (peek() == ']') fail("an empty [] is not supported");
    while (peek() != ']') {
      if (at_ >= in_.size()) fail("a [ is not closed");
      if (peek() == '[') fail("[ inside [...] is not supported; for the sign itself write \\[");
      if (peek() == '&' && peek(1) == '&') fail("&& inside [...] is not supported");
      peek() == '\\' ? escape(/*in_class=*/true) : copy();
    }
    copy();
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view pattern) { return Translation(pattern).run(); }

/// PCRE2 wants memory for each match that runs; what is free waits here.
struct SplitPattern::Compiled {
  pcre2_code* code = nullptr;
  std::mutex mutex;
  std::vector<pcre2_match_data*> free;
  pcre2_match_context* limits = nullptr;

  ~Compiled() {
    for (pcre2_match_data* data : free) pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
  pcre2_match_data* take() {
    const std::scoped_lock lock(mutex);
    if (free.empty()) return pcre2_match_data_create_from_pattern(code, nullptr);
    pcre2_match_data* data = free.back();
    free.pop_back();
    return data;
  }
  void give_back(pcre2_match_data* data) {
    const std::scoped_lock lock(mutex);
    free.push_back(data);
  }
};

SplitPattern::SplitPattern(std::string_view pattern) : compiled_(std::make_unique<Compiled>()) {
  if (pattern.size() > kLongestPattern)
    throw ConfigError(fmt::format("the pattern has {} bytes; {} are the most", pattern.size(), kLongestPattern));
  const std::string translated = to_pcre2(pattern);
  int error = 0;
  PCRE2_SIZE where = 0;
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &where, nullptr);
  if (compiled_->code == nullptr) {
    char message[256] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    throw ConfigError(fmt::format("the pattern {}: {} (character {} of {})", formats::shown(pattern), message, where,
                                  formats::shown(translated)));
  }
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(compiled_->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0)
    throw ConfigError(
        fmt::format("the pattern {} matches the empty text, so it cuts nothing", formats::shown(pattern)));
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);  // where there is no JIT, the interpreter matches the same
  compiled_->limits = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(compiled_->limits, kMostSteps);
  pcre2_set_heap_limit(compiled_->limits, kMostHeapKib);
}

SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;

SplitPattern::Search::Search(const SplitPattern& pattern, std::string_view text)
    : compiled_(*pattern.compiled_), text_(text), memory_(compiled_.take()) {}

SplitPattern::Search::~Search() { compiled_.give_back(static_cast<pcre2_match_data*>(memory_)); }

bool SplitPattern::Search::next(Match& match) {
  auto* data = static_cast<pcre2_match_data*>(memory_);
  const auto run = [&](std::uint32_t more) {
    return pcre2_match(compiled_.code, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from_,
                       PCRE2_NO_UTF_CHECK | more, data, compiled_.limits);
  };
  int found = run(0);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);  // slower, on a larger stack
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    char message[256] = {};
    pcre2_get_error_message(found, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    throw ConfigError(
        fmt::format("a split pattern failed at byte {} of a text of {} bytes: {}", from_, text_.size(), message),
        "a pattern that repeats repetitions, as (a+)+, can take for ever: write it without");
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
  match = {ends[0], ends[1]};
  from_ = match.end;
  return true;
}

}  // namespace trireme::data
