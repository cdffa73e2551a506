#include "trireme/data/corpus/html_text.h"

#include <algorithm>
#include <array>

#include "trireme/data/tokenizer/utf8_text.h"

namespace trireme::data {
namespace {

constexpr std::array<std::string_view, 8> kHidden{"script",   "style",  "title", "template",
                                                  "noscript", "iframe", "svg",   "noframes"};
constexpr std::array<std::string_view, 30> kParagraphs{
    "address", "article", "aside", "blockquote", "body",    "dl",    "fieldset", "figure", "footer", "form",
    "h1",      "h2",      "h3",    "h4",         "h5",      "h6",    "header",   "hr",     "html",   "main",
    "nav",     "ol",      "p",     "pre",        "section", "table", "tbody",    "thead",  "ul",     "textarea"};
constexpr std::array<std::string_view, 9> kLines{"div",    "li",      "tr",         "dt",     "dd",
                                                 "option", "caption", "figcaption", "summary"};

bool is_html_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r'; }
bool is_html_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char html_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

template <std::size_t kCount>
bool holds(const std::array<std::string_view, kCount>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

class HtmlReader {
 public:
  explicit HtmlReader(std::string_view page) : page_(page) { out_.reserve(page.size() / 2); }

  std::string read() {
    if (page_.starts_with("\xEF\xBB\xBF")) at_ = 3;  // a byte order mark
    while (at_ < page_.size()) {
      if (page_[at_] == '<' && take_markup()) continue;
      if (page_[at_] == '&' && take_reference()) continue;
      put(page_[at_++]);
    }
    return std::move(out_);
  }

 private:
  /// False: this '<' is text.
  bool take_markup() {
    const std::string_view rest = page_.substr(at_);
    if (rest.starts_with("<!--")) return skip_past("-->", at_ + 4);
    if (rest.starts_with("<!") || rest.starts_with("<?")) return skip_past(">", at_ + 2);
    const bool closes = rest.starts_with("</");
    const std::size_t begin = at_ + (closes ? 2 : 1);
    if (begin >= page_.size() || !is_html_letter(page_[begin])) return false;
    std::size_t end = begin;
    std::string name;
    for (; end < page_.size() && page_[end] != '>' && page_[end] != '/' && !is_html_space(page_[end]); ++end)
      name += html_lower(page_[end]);
    at_ = end;
    const bool empty = skip_attributes();
    closes ? close(name) : open(name, empty);
    return true;
  }

  bool skip_past(std::string_view mark, std::size_t from) {
    const std::size_t found = page_.find(mark, from);
    at_ = found == page_.npos ? page_.size() : found + mark.size();
    return true;
  }

  /// To behind the tag's end; true: it ends in "/>".
  bool skip_attributes() {
    char quote = 0;
    bool value = false;  // quotes count only after '='
    for (; at_ < page_.size(); ++at_) {
      const char c = page_[at_];
      if (quote != 0) {
        if (c == quote) quote = 0;
      } else if (c == '>') {
        ++at_;
        return page_[at_ - 2] == '/';
      } else if (value && (c == '"' || c == '\'')) {
        quote = c;
      }
      if (!is_html_space(c)) value = c == '=';
    }
    return false;
  }

  void open(const std::string& name, bool empty) {
    if (holds(kHidden, name)) {
      if (!empty || name != "svg") skip_hidden(name);
    } else if (name == "br") {
      breaks_ = std::min(breaks_ + 1, 2);
    } else if (name == "td" || name == "th") {
      if (!out_.empty() && breaks_ == 0) tab_ = true;
    } else {
      begin_line(name);
    }
    if (name == "pre" || name == "textarea") {
      ++kept_;
      if (page_.substr(at_).starts_with("\r\n"))
        at_ += 2;
      else if (page_.substr(at_).starts_with("\n"))
        ++at_;
    }
  }
  void close(const std::string& name) {
    begin_line(name);
    if ((name == "pre" || name == "textarea") && kept_ > 0) --kept_;
  }
  void begin_line(const std::string& name) {
    if (holds(kParagraphs, name)) breaks_ = 2;
    if (holds(kLines, name)) breaks_ = std::max(breaks_, 1);
  }

  void skip_hidden(const std::string& name) {
    for (; at_ < page_.size(); ++at_) {
      at_ = std::min(page_.find("</", at_), page_.size());
      const std::string_view tag = page_.substr(at_).substr(0, name.size() + 2);
      if (tag.size() == name.size() + 2 && std::ranges::equal(tag.substr(2), name, {}, html_lower)) {
        skip_past(">", at_);
        return;
      }
    }
    at_ = std::min(at_, page_.size());
  }

  /// False: this '&' is text.
  bool take_reference() {
    const std::string_view rest = page_.substr(at_ + 1);
    std::size_t bytes = 0;
    const auto code = html_reference(rest, bytes);
    if (!code) return false;
    std::string character;
    append_utf8(character, *code);
    at_ += 1 + bytes;
    if (character.size() == 1) {
      put(character[0]);
    } else {
      for (const char byte : character) put_visible(byte);
    }
    return true;
  }

  void put(char c) {
    if (!is_html_space(c) || kept_ > 0) return put_visible(c);
    space_ = true;
  }
  void put_visible(char c) {
    if (!out_.empty()) {
      if (breaks_ > 0)
        out_.append(static_cast<std::size_t>(breaks_), '\n');
      else if (tab_)
        out_ += '\t';
      else if (space_)
        out_ += ' ';
    }
    breaks_ = 0;
    tab_ = space_ = false;
    out_ += c;
  }

  std::string_view page_;
  std::size_t at_ = 0;
  std::string out_;
  int kept_ = 0;    // elements that keep their white space
  int breaks_ = 0;  // line ends before what comes next; 2: an empty line
  bool tab_ = false, space_ = false;
};

}  // namespace

std::string html_text(std::string_view page) { return HtmlReader(page).read(); }

}  // namespace trireme::data
