// base/error.h -- the one way things go wrong.
//
// An Error says what happened, in which circumstances (context, innermost first) and what would help (hint). Throw one
// of the kinds below; add context while it passes with `catch (Error& e) { e.add_context(...); throw; }` or
// with_context(). The program prints block() and exits non-zero.
// Depends on: fmt.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

class Error : public std::exception {
 public:
  explicit Error(std::string message, std::string hint = {});

  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& message() const { return message_; }
  const std::string& hint() const { return hint_; }
  const std::vector<std::string>& context() const { return context_; }

  /// "while reading recipes/tiny.toml": one more circumstance, outer than those already there.
  void add_context(std::string circumstance) { context_.push_back(std::move(circumstance)); }
  /// What kind of failure this is, in a word or two: the first word of the printed block.
  virtual const char* kind() const noexcept { return "error"; }
  /// Whether doing the same again later may succeed (a lost peer), or never will (a misspelt key).
  virtual bool retry_may_help() const noexcept { return false; }

  /// The readable block: kind and message, context lines, hint; with `trace`, where it was thrown.
  std::string block(bool trace = false) const;

 private:
  std::string message_, hint_;
  std::vector<std::string> context_;
  std::vector<void*> frames_;  // raw addresses; turned into names only when someone asks for the trace
};

/// The user's recipe, flag or environment is wrong.
class ConfigError : public Error {
 public:
  using Error::Error;
  const char* kind() const noexcept override { return "configuration error"; }
};

/// A file, disk or host did not do what was asked.
class IoError : public Error {
 public:
  using Error::Error;
  const char* kind() const noexcept override { return "i/o error"; }
  bool retry_may_help() const noexcept override { return true; }
};

/// Ranks could not say to each other what they had to: a lost peer, a timeout, calls that do not match.
class CommError : public Error {
 public:
  using Error::Error;
  const char* kind() const noexcept override { return "communication error"; }
  bool retry_may_help() const noexcept override { return true; }
};

/// An invariant of ours does not hold: always a defect in Trireme.
class InternalError : public Error {
 public:
  using Error::Error;
  const char* kind() const noexcept override { return "internal error"; }
};

/// Runs `body`; an Error passing through gains `circumstance`.
template <typename Body>
decltype(auto) with_context(const std::string& circumstance, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (Error& error) {
    error.add_context(circumstance);
    throw;
  }
}

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, std::string why);
}

}  // namespace trireme

/// TRIREME_CHECK(a < b, "a must stay below b: {} and {}", a, b): stops with an InternalError when the condition is
/// false.
#define TRIREME_CHECK(condition, ...)                                                              \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::trireme::detail::check_failed(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
