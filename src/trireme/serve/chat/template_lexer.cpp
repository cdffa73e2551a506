#include "trireme/serve/chat/template_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "trireme/base/error.h"

namespace trireme::serve::chat {
namespace {

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

class TemplateLexer {
 public:
  explicit TemplateLexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t open = next_tag(at_);
      add_text(open);
      if (open == source_.size()) break;
      at_ = open;
      take_tag();
    }
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::size_t next_tag(std::size_t from) const {
    for (std::size_t i = source_.find('{', from); i < source_.size(); i = source_.find('{', i + 1)) {
      if (i + 1 < source_.size() && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) return i;
    }
    return source_.size();
  }

  void add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  [[noreturn]] void fail(const std::string& what) const {
    throw ConfigError(fmt::format("line {} of the chat template: {}", line_, what));
  }

  void add_text(std::size_t end) {
    std::string_view text = source_.substr(at_, end - at_);
    const auto lines = std::ranges::count(text, '\n');
    if (strip_next_) {
      while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    } else if (trim_line_ && text.starts_with('\n')) {
      text.remove_prefix(1);
    }
    if (end < source_.size()) {
      if (end + 2 < source_.size() && source_[end + 2] == '-') {
        while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
      } else if (source_[end + 1] != '{' && !(end + 2 < source_.size() && source_[end + 2] == '+')) {
        // Blanks between the beginning of a line and a statement or comment.
        std::size_t begin = end;
        while (begin > 0 && (source_[begin - 1] == ' ' || source_[begin - 1] == '\t')) --begin;
        if (begin == 0 || source_[begin - 1] == '\n') text.remove_suffix(std::min(end - begin, text.size()));
      }
    }
    if (!text.empty()) add(Token::Kind::kText, std::string(text));
    line_ += static_cast<int>(lines);
    strip_next_ = trim_line_ = false;
  }

  void take_tag() {
    const char kind = source_[at_ + 1];
    at_ += 2;
    if (kind == '#') {
      const std::size_t end = source_.find("#}", at_);
      if (end == std::string_view::npos) fail("a comment {# does not end");
      line_ += static_cast<int>(std::ranges::count(source_.substr(at_, end - at_), '\n'));
      strip_next_ = end > at_ && source_[end - 1] == '-';
      trim_line_ = true;
      at_ = end + 2;
      return;
    }
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) ++at_;
    add(kind == '{' ? Token::Kind::kPrintBegin : Token::Kind::kBlockBegin, "");
    const std::string_view close = kind == '{' ? "}}" : "%}";
    int braces = 0;  // of mappings, whose ends must not be taken for the tag's
    while (true) {
      while (at_ < source_.size() && is_blank(source_[at_])) line_ += source_[at_++] == '\n';
      if (at_ >= source_.size()) fail(kind == '{' ? "an expression {{ does not end" : "a statement {% does not end");
      const std::string_view rest = source_.substr(at_);
      const bool stripped = rest.starts_with('-') && rest.substr(1).starts_with(close);
      if (braces == 0 && (stripped || rest.starts_with(close))) {
        at_ += stripped ? 3 : 2;
        strip_next_ = stripped;
        trim_line_ = kind == '%';
        add(kind == '{' ? Token::Kind::kPrintEnd : Token::Kind::kBlockEnd, "");
        return;
      }
      take_token();
      if (tokens_.back().kind == Token::Kind::kOperator) {
        braces += (tokens_.back().text == "{") - (tokens_.back().text == "}");
      }
    }
  }

  void take_token() {
    const char c = source_[at_];
    if (is_name_start(c)) return take_while(Token::Kind::kName, [](char n) { return is_name_start(n) || is_digit(n); });
    if (is_digit(c)) return take_number();
    if (c == '\'' || c == '"') return take_string(c);
    for (const std::string_view two : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (source_.substr(at_).starts_with(two)) {
        at_ += 2;
        return add(Token::Kind::kOperator, std::string(two));
      }
    }
    if (std::string_view("+-*/%~<>=()[]{},.:|").find(c) == std::string_view::npos) {
      fail(fmt::format("'{}' is not understood", c));
    }
    ++at_;
    add(Token::Kind::kOperator, std::string(1, c));
  }

  template <typename Belongs>
  void take_while(Token::Kind kind, Belongs belongs) {
    const std::size_t begin = at_;
    while (at_ < source_.size() && belongs(source_[at_])) ++at_;
    add(kind, std::string(source_.substr(begin, at_ - begin)));
  }

  void take_number() {
    const std::size_t begin = at_;
    while (at_ < source_.size() && is_digit(source_[at_])) ++at_;
    Token::Kind kind = Token::Kind::kInteger;
    if (at_ + 1 < source_.size() && source_[at_] == '.' && is_digit(source_[at_ + 1])) {
      kind = Token::Kind::kFloat;
      for (++at_; at_ < source_.size() && is_digit(source_[at_]);) ++at_;
    }
    if (at_ - begin > 18) fail("a number has more than 18 digits");
    add(kind, std::string(source_.substr(begin, at_ - begin)));
  }

  void take_string(char quote) {
    std::string text;
    const int begin = line_;
    for (++at_; at_ < source_.size() && source_[at_] != quote; ++at_) {
      char c = source_[at_];
      line_ += c == '\n';
      if (c == '\\' && at_ + 1 < source_.size()) {
        c = source_[++at_];
        const std::size_t known = std::string_view("nrt0").find(c);
        if (known != std::string_view::npos) {
          c = std::string_view("\n\r\t\0", 4)[known];
        } else if (c != '\\' && c != '\'' && c != '"') {
          fail(fmt::format("the escape \\{} is not supported", c));
        }
      }
      text += c;
    }
    if (at_ >= source_.size()) fail("a text in quotes does not end");
    ++at_;
    tokens_.push_back({Token::Kind::kString, std::move(text), begin});
  }

  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool strip_next_ = false, trim_line_ = false;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenise_template(std::string_view source) {
  // Jinja leaves out one line break at the end.
  if (source.ends_with('\n')) source.remove_suffix(1);
  return TemplateLexer(source).run();
}

}  // namespace trireme::serve::chat
