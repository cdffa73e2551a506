#include "trireme/formats/json_reader.h"

#include <charconv>
#include <limits>
#include <system_error>

#include "trireme/formats/json_text.h"
#include "trireme/formats/utf8.h"

namespace trireme::formats {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, unsigned code) {
  const auto add = [&](unsigned byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
}

}  // namespace

std::string shown(std::string_view name) {
  constexpr std::size_t kMost = 160;
  if (name.size() <= kMost) return json_string(name);
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;  // not within a character
  return fmt::format("{}... ({} bytes)", json_string(name.substr(0, end)), name.size());
}

void JsonReader::fail(std::uint64_t position, std::string_view what, std::string hint) const {
  const std::string subject = subject_kind_.empty() ? "" : fmt::format(" {} {}:", subject_kind_, shown(subject_));
  throw FormatError(fmt::format("{}:{} {} (byte {})", source_, subject, what, position), std::move(hint));
}

void JsonReader::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
    ++at_;
}

char JsonReader::next_character() {
  skip_space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonReader::unexpected(std::string_view expected) {
  skip_space();
  if (at_ >= text_.size()) fail(first_byte_ + at_, fmt::format("{} is expected, but the text ends", expected));
  const auto byte = static_cast<unsigned char>(text_[at_]);
  fail(first_byte_ + at_, byte > 0x20 && byte < 0x7F
                              ? fmt::format("{} is expected, not '{}'", expected, text_[at_])
                              : fmt::format("{} is expected, not the byte {:#04x}", expected, byte));
}

JsonReader::Kind JsonReader::peek() {
  switch (const char c = next_character()) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kArray;
    case '"':
      return Kind::kString;
    case 't':
      return Kind::kTrue;
    case 'f':
      return Kind::kFalse;
    case 'n':
      return Kind::kNull;
    default:
      if (c == '-' || is_digit(c)) return Kind::kNumber;
      if (dialect_ == Dialect::kPython && (c == 'N' || c == 'I')) return Kind::kNumber;
      unexpected("a value");
  }
}

void JsonReader::enter(char open, std::string_view expected) {
  if (next_character() != open) unexpected(expected);
  if (++depth_ > kMaxDepth) fail(first_byte_ + at_, fmt::format("values are nested more than {} deep", kMaxDepth));
  ++at_;
}

bool JsonReader::leave(char close, bool first) {
  const char c = next_character();
  if (c == close) {
    ++at_;
    --depth_;
    return true;
  }
  if (first) return false;
  if (c != ',') unexpected(close == '}' ? "',' or '}'" : "',' or ']'");
  ++at_;
  return false;
}

void JsonReader::take_colon() {
  if (next_character() != ':') unexpected("':'");
  ++at_;
}

void JsonReader::take_word(std::string_view word) {
  skip_space();
  if (text_.substr(at_, word.size()) != word) unexpected(word);
  at_ += word.size();
}

bool JsonReader::boolean() {
  const char c = next_character();
  if (c != 't' && c != 'f') unexpected("true or false");
  take_word(c == 't' ? "true" : "false");
  return c == 't';
}

void JsonReader::null() { take_word("null"); }

void JsonReader::take_utf8() {
  const std::size_t length = utf8_length(text_.substr(at_));
  if (length == 0)
    fail(first_byte_ + at_,
         fmt::format("the byte {:#04x} is no part of UTF-8 text here", static_cast<unsigned char>(text_[at_])));
  at_ += length;
}

std::string JsonReader::string() {
  if (next_character() != '"') unexpected("a text in \"quotes\"");
  const std::size_t begin = at_++;
  std::string out;
  std::size_t copied = at_;  // up to here `out` has everything
  for (;;) {
    if (at_ >= text_.size()) fail(first_byte_ + begin, "the text that begins here does not end");
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c == '"') {
      out.append(text_, copied, at_ - copied);
      ++at_;
      return out;
    }
    if (c == '\\') {
      out.append(text_, copied, at_ - copied);
      ++at_;
      take_escape(out);
      copied = at_;
    } else if (c < 0x20) {
      fail(first_byte_ + at_, fmt::format("the control character {:#04x} must be escaped in a text", c));
    } else if (c < 0x80) {
      ++at_;
    } else {
      take_utf8();
    }
  }
}

unsigned JsonReader::take_hex4() {
  unsigned code = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
  if (digits.size() < 4 || error != std::errc() || end != digits.data() + 4)
    fail(first_byte_ + at_, "four hexadecimal digits are expected after \\u");
  at_ += 4;
  return code;
}

void JsonReader::take_escape(std::string& out) {
  static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  const std::size_t begin = at_ - 1;
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  if (const std::size_t letter = kLetters.find(c); c != '\0' && letter != kLetters.npos) {
    out += kMeanings[letter];
    ++at_;
    return;
  }
  if (c != 'u') fail(first_byte_ + begin, "a backslash may only be followed by one of \" \\ / b f n r t u");
  ++at_;
  unsigned code = take_hex4();
  if (code >= 0xD800 && code <= 0xDBFF && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    const unsigned low = take_hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail(first_byte_ + begin, "half a surrogate pair is no character");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xD800 && code <= 0xDFFF) {
    fail(first_byte_ + begin, "half a surrogate pair is no character");
  }
  append_utf8(out, code);
}

JsonReader::Number JsonReader::number() {
  const char first = next_character();
  const std::size_t begin = at_;
  if (dialect_ == Dialect::kPython) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (const auto& [word, value] :
         {std::pair<std::string_view, double>{"NaN", std::numeric_limits<double>::quiet_NaN()},
          {"Infinity", kInfinity},
          {"-Infinity", -kInfinity}}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return value;
    }
  }
  const auto at = [&](std::size_t i) { return i < text_.size() ? text_[i] : '\0'; };
  const auto digits = [&](std::string_view where) {
    if (!is_digit(at(at_))) unexpected(fmt::format("a digit {}", where));
    while (is_digit(at(at_))) ++at_;
  };
  if (first == '-') ++at_;
  if (at(at_) == '0' && is_digit(at(at_ + 1))) fail(first_byte_ + at_, "a number may not begin with 0");
  if (first != '-' && !is_digit(first)) unexpected("a number");
  digits("after '-'");
  bool whole = true;
  if (at(at_) == '.') {
    whole = false;
    ++at_;
    digits("after '.'");
  }
  if (at(at_) == 'e' || at(at_) == 'E') {
    whole = false;
    ++at_;
    if (at(at_) == '+' || at(at_) == '-') ++at_;
    digits("in the exponent");
  }
  const char *from = text_.data() + begin, *to = text_.data() + at_;
  if (std::int64_t value = 0; whole && std::from_chars(from, to, value).ec == std::errc()) return value;
  if (std::uint64_t value = 0; whole && std::from_chars(from, to, value).ec == std::errc()) return value;
  double value = 0;
  if (std::from_chars(from, to, value).ec != std::errc())
    fail(first_byte_ + begin, "the number is too large or too near to 0 for a double");
  return value;
}

std::int64_t JsonReader::whole_number() {
  const std::uint64_t begin = value_position();
  if (peek() != Kind::kNumber) unexpected("a whole number");
  const Number value = number();
  const auto* whole = std::get_if<std::int64_t>(&value);
  if (whole == nullptr || *whole < 0) fail(begin, "the number must be whole and from 0 to 9223372036854775807");
  return *whole;
}

void JsonReader::skip() {
  switch (peek()) {
    case Kind::kObject:
      return object([&](const std::string&) { skip(); });
    case Kind::kArray:
      return array([&] { skip(); });
    case Kind::kString:
      string();
      return;
    case Kind::kNumber:
      number();
      return;
    case Kind::kTrue:
    case Kind::kFalse:
      boolean();
      return;
    case Kind::kNull:
      return null();
  }
}

std::string_view JsonReader::raw() {
  skip_space();
  const std::size_t begin = at_;
  skip();
  return text_.substr(begin, at_ - begin);
}

void JsonReader::end() {
  if (next_character(); at_ < text_.size()) unexpected("the end of the JSON text");
}

}  // namespace trireme::formats
