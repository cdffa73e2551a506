#include "trireme/formats/xml_reader.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cstdint>

#include "trireme/formats/format_error.h"

namespace trireme::formats {
namespace {

constexpr int kMostDepth = 64;  // the reader calls itself for each

class XmlReader {
 public:
  XmlReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  XmlElement document() {
    skip_to_element();
    XmlElement root = element(0);
    skip_to_element();
    if (at_ < text_.size()) fail("there is more than one root element");
    return root;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(fmt::format("{}: {} (byte {})", name_, what, at_), "give the XML file that NCCL has written");
  }
  bool starts(std::string_view with) const { return text_.substr(at_).starts_with(with); }
  void pass(std::string_view end, const char* what) {
    const auto found = text_.find(end, at_);
    if (found == text_.npos) fail(fmt::format("{} that never ends", what));
    at_ = found + end.size();
  }
  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  /// Over text, comments and declarations, to '<' of an element or of an end, or to the end of the file.
  void skip_to_element() {
    while (at_ < text_.size()) {
      if (starts("<!--")) {
        pass("-->", "a comment");
      } else if (starts("<?")) {
        pass("?>", "a declaration");
      } else if (starts("<!")) {
        fail("document types are not read");
      } else if (text_[at_] == '<') {
        return;
      } else {
        ++at_;
      }
    }
  }

  std::string word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_' ||
                                  text_[at_] == '-' || text_[at_] == ':' || text_[at_] == '.'))
      ++at_;
    if (at_ == begin) fail("a name should stand here");
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string value() {
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '"' && quote != '\'') fail("the value of an attribute should stand here, in quotes");
    const auto end = text_.find(quote, ++at_);
    if (end == text_.npos) fail("a value that never ends");
    std::string out;
    while (at_ < end) {
      if (text_[at_] == '&') {
        out += entity(end);
      } else {
        out += text_[at_++];
      }
    }
    at_ = end + 1;
    return out;
  }

  char entity(std::size_t end) {
    const auto semicolon = text_.find(';', at_);
    if (semicolon == text_.npos || semicolon > end) fail("an entity that never ends");
    const std::string_view name = text_.substr(at_ + 1, semicolon - at_ - 1);
    char letter = '\0';
    if (name == "amp") letter = '&';
    if (name == "lt") letter = '<';
    if (name == "gt") letter = '>';
    if (name == "quot") letter = '"';
    if (name == "apos") letter = '\'';
    if (name.starts_with('#')) {
      const bool hex = name.starts_with("#x");
      const std::string_view digits = name.substr(hex ? 2 : 1);
      std::uint32_t code = 0;
      const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10);
      if (error == std::errc{} && stop == digits.data() + digits.size() && code > 0 && code < 128)
        letter = static_cast<char>(code);
    }
    if (letter == '\0') fail(fmt::format("{} is no entity that is known here", shown(name)));
    at_ = semicolon + 1;
    return letter;
  }

  XmlElement element(int depth) {
    if (depth > kMostDepth) fail("elements lie too deep in each other");
    if (!starts("<")) fail("there is no element");
    ++at_;
    XmlElement out{.name = word(), .attributes = {}, .children = {}};
    for (;;) {
      skip_blanks();
      if (starts("/>")) {
        at_ += 2;
        return out;
      }
      if (starts(">")) break;
      std::string key = word();
      skip_blanks();
      if (!starts("=")) fail("an attribute without a value");
      ++at_;
      skip_blanks();
      out.attributes.emplace_back(std::move(key), value());
    }
    ++at_;
    for (;;) {
      skip_to_element();
      if (at_ >= text_.size()) fail(fmt::format("the element {} never ends", shown(out.name)));
      if (!starts("</")) {
        out.children.push_back(element(depth + 1));
        continue;
      }
      at_ += 2;
      if (word() != out.name) fail(fmt::format("the element {} is ended by another name", shown(out.name)));
      skip_blanks();
      if (!starts(">")) fail("an end that is not closed");
      ++at_;
      return out;
    }
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
};

}  // namespace

std::string_view XmlElement::attribute(std::string_view key) const {
  for (const auto& [found, value] : attributes) {
    if (found == key) return value;
  }
  return {};
}

XmlElement read_xml(std::string_view text, const std::string& name) { return XmlReader(text, name).document(); }

}  // namespace trireme::formats
