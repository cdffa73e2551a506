// formats/json_reader.h -- JSON from files that nobody has checked, read piece by piece.
//
// Every mistake is a FormatError with the file, what it is about and the byte. No tree is built, so a header of a
// hundred megabytes costs what the caller keeps of it; nesting is limited, so that no text can exhaust the stack; texts
// must be UTF-8.
//
//   JsonReader json(text, "model.safetensors", /*first_byte=*/8);
//   json.object([&](std::string key) { sizes[key] = json.whole_number(); });
//   json.end();
// Depends on: base.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "trireme/formats/format_error.h"

namespace trireme::formats {

class JsonReader {
 public:
  enum class Kind : std::uint8_t { kObject, kArray, kString, kNumber, kTrue, kFalse, kNull };
  enum class Dialect : std::uint8_t {
    kStrict,
    kPython,  ///< also NaN, Infinity and -Infinity, which Python's writer makes and published configurations contain
  };
  using Number = std::variant<std::int64_t, std::uint64_t, double>;  // the first that holds the value exactly

  static constexpr int kMaxDepth = 64;

  /// `text` and `source`, the file's name, stay borrowed. `first_byte`: where in the file the text begins, for
  /// messages.
  JsonReader(std::string_view text, std::string_view source, std::uint64_t first_byte = 0,
             Dialect dialect = Dialect::kStrict)
      : text_(text), source_(source), first_byte_(first_byte), dialect_(dialect) {}

  /// What the next value is.
  Kind peek();
  std::string string();
  Number number();
  /// A number from 0 to 2^63 - 1, without fraction or exponent.
  std::int64_t whole_number();
  bool boolean();
  void null();
  /// Calls `member` with each key, in the order of the file; it reads the value.
  template <typename Member>
  void object(Member&& member) {
    enter('{', "an object {...}");
    for (bool first = true; !leave('}', first); first = false) {
      key_at_ = value_position();
      std::string key = string();
      take_colon();
      member(std::move(key));
    }
  }
  template <typename Element>
  void array(Element&& element) {
    enter('[', "a list [...]");
    for (bool first = true; !leave(']', first); first = false) element();
  }
  void skip();
  /// skip(), and the text that was skipped.
  std::string_view raw();
  /// Nothing but white space may follow.
  void end();

  /// What messages are about until the next call: kind "tensor", name "wte.weight". Borrowed.
  void about(std::string_view kind, std::string_view name) {
    subject_kind_ = kind;
    subject_ = name;
  }
  /// Where in the file the next value begins, and where the key that was read last did.
  std::uint64_t value_position() {
    skip_space();
    return first_byte_ + at_;
  }
  std::uint64_t key_position() const { return key_at_; }
  [[noreturn]] void fail(std::uint64_t position, std::string_view what, std::string hint = {}) const;

 private:
  void skip_space();
  char next_character();
  void enter(char open, std::string_view expected);
  bool leave(char close, bool first);
  void take_colon();
  void take_word(std::string_view word);
  [[noreturn]] void unexpected(std::string_view expected);
  void take_escape(std::string& out);
  unsigned take_hex4();
  void take_utf8();

  std::string_view text_, source_;
  std::uint64_t first_byte_;
  Dialect dialect_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::uint64_t key_at_ = 0;
  std::string_view subject_kind_, subject_;
};

}  // namespace trireme::formats
