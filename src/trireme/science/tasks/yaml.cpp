#include "trireme/science/tasks/yaml.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::science {
namespace {

using nlohmann::ordered_json;

struct YamlLine {
  std::size_t number = 0, indent = 0;
  std::string text;  ///< without indentation and comment
  std::string whole;
};

class YamlReader {
 public:
  YamlReader(std::string_view text, std::string source) : source_(std::move(source)) {
    std::size_t number = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string line(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      if (!line.empty() && line.back() == '\r') line.pop_back();
      ++number;
      const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
      lines_.push_back({number, indent, without_comment(line.substr(indent)), line});
    }
  }

  ordered_json read() {
    skip_empty();
    if (at_ < lines_.size() && lines_[at_].text == "---") ++at_;
    skip_empty();
    ordered_json value = at_ < lines_.size() ? node(lines_[at_].indent) : ordered_json(nullptr);
    skip_empty();
    if (at_ < lines_.size()) fail("is not at the indentation of what is before it");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    const YamlLine& line = lines_[std::min(at_, lines_.size() - 1)];
    throw ConfigError(fmt::format("{}:{}: \"{}\" {}", source_, line.number, line.text, why),
                      "write it as plain mappings, lists and strings");
  }

  /// A # that begins a word outside of quotes begins a comment.
  static std::string without_comment(std::string text) {
    char quote = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (quote != 0) {
        if (c == '\\' && quote == '"') ++i;
        if (c == quote) quote = 0;
      } else if ((c == '"' || c == '\'') &&
                 (i == 0 || std::string_view(" [,:").find(text[i - 1]) != std::string::npos)) {
        quote = c;
      } else if (c == '#' && (i == 0 || text[i - 1] == ' ')) {
        text.resize(i);
        break;
      }
    }
    text.erase(text.find_last_not_of(" \t") + 1);
    return text;
  }

  void skip_empty() {
    while (at_ < lines_.size() && lines_[at_].text.empty()) ++at_;
  }
  bool more_at(std::size_t indent) {
    skip_empty();
    return at_ < lines_.size() && lines_[at_].indent == indent;
  }

  ordered_json node(std::size_t indent) {
    const std::string& text = lines_[at_].text;
    if (text == "-" || text.starts_with("- ")) return sequence(indent);
    return key_end(text) != std::string::npos ? mapping(indent) : scalar_line();
  }

  ordered_json scalar_line() {
    ordered_json value = scalar(lines_[at_].text);
    ++at_;
    return value;
  }

  /// Where the colon that ends a key stands.
  static std::size_t key_end(const std::string& text) {
    std::size_t from = 0;
    if (!text.empty() && (text[0] == '"' || text[0] == '\'')) from = text.find(text[0], 1);
    if (from == std::string::npos) return from;
    for (std::size_t i = from; i < text.size(); ++i) {
      if (text[i] == ':' && (i + 1 == text.size() || text[i + 1] == ' ')) return i;
    }
    return std::string::npos;
  }

  ordered_json mapping(std::size_t indent) {
    ordered_json object = ordered_json::object();
    while (more_at(indent)) {
      const std::string text = lines_[at_].text;
      const std::size_t colon = key_end(text);
      if (colon == std::string::npos) fail("has no key");
      ordered_json name = scalar(text.substr(0, colon));
      const std::string key = name.is_string() ? name.get<std::string>() : name.dump();
      if (key == "<<") fail("is a merge key, which is not supported");
      if (object.contains(key)) fail("stands there twice");
      object[key] = value_behind(text.substr(std::min(text.find_first_not_of(' ', colon + 1), text.size())), indent);
    }
    return object;
  }

  ordered_json sequence(std::size_t indent) {
    ordered_json array = ordered_json::array();
    while (more_at(indent) && (lines_[at_].text == "-" || lines_[at_].text.starts_with("- "))) {
      YamlLine& line = lines_[at_];
      const std::size_t begin = std::min(line.text.find_first_not_of(' ', 1), line.text.size());
      if (begin < line.text.size() && key_end(line.text.substr(begin)) != std::string::npos &&
          line.text[begin] != '"' && line.text[begin] != '\'' && line.text[begin] != '[') {
        line.indent += begin;  // a mapping that begins behind the dash
        line.text = line.text.substr(begin);
        array.push_back(mapping(line.indent));
      } else {
        array.push_back(value_behind(line.text.substr(begin), indent));
      }
    }
    return array;
  }

  /// What stands behind a key or a dash, on its line or below it.
  ordered_json value_behind(const std::string& text, std::size_t indent) {
    if (!text.empty() && (text[0] == '|' || text[0] == '>')) return block_scalar(text, indent);
    if (!text.empty()) {
      ordered_json value = text[0] == '[' ? flow(text) : scalar(text);
      ++at_;
      return value;
    }
    ++at_;
    skip_empty();
    if (at_ == lines_.size()) return nullptr;
    const YamlLine& next = lines_[at_];
    const bool list = next.indent == indent && (next.text == "-" || next.text.starts_with("- "));
    if (next.indent > indent || list) return node(next.indent);
    return nullptr;
  }

  ordered_json block_scalar(const std::string& header, std::size_t indent) {
    if (header.size() > 2 || (header.size() == 2 && header[1] != '-' && header[1] != '+'))
      fail("is a block scalar with an indentation indicator, which is not supported");
    ++at_;
    std::size_t inner = 0;
    std::string value;
    for (; at_ < lines_.size(); ++at_) {
      const YamlLine& line = lines_[at_];
      const bool empty = line.whole.find_first_not_of(' ') == std::string::npos;
      if (!empty && line.indent <= indent) break;
      if (!empty && inner == 0) inner = line.indent;
      value += (empty ? "" : line.whole.substr(std::min(inner, line.whole.size()))) + "\n";
    }
    const std::size_t end = value.find_last_not_of('\n');
    if (header.size() != 2 || header[1] != '+')
      value.resize(end == std::string::npos ? 0 : end + (header.size() == 2 ? 1 : 2));
    if (header[0] == '>') {
      for (std::size_t i = 0; i + 1 < value.size(); ++i) {
        if (value[i] == '\n' && value[i + 1] != '\n' && (i == 0 || value[i - 1] != '\n')) value[i] = ' ';
      }
    }
    return value;
  }

  ordered_json flow(const std::string& text) {
    if (text.back() != ']') fail("is a list over several lines, which is not supported");
    ordered_json array = ordered_json::array();
    std::string one;
    char quote = 0;
    for (std::size_t i = 1; i < text.size(); ++i) {
      const char c = text[i];
      const bool last = i + 1 == text.size();
      if (quote == 0 && (c == ',' || last)) {
        const std::size_t begin = one.find_first_not_of(' ');
        if (begin != std::string::npos)
          array.push_back(scalar(one.substr(begin, one.find_last_not_of(' ') - begin + 1)));
        one.clear();
        continue;
      }
      if (quote == 0 && (c == '[' || c == '{')) fail("is a list in a list on one line, which is not supported");
      if (quote == 0 && (c == '"' || c == '\''))
        quote = c;
      else if (c == quote)
        quote = 0;
      one += c;
    }
    return array;
  }

  ordered_json scalar(const std::string& text) {
    if (text.empty() || text == "~" || text == "null") return nullptr;
    if (text[0] == '"' || text[0] == '\'') return quoted(text);
    if (text[0] == '!' || text[0] == '&' || text[0] == '*' || text[0] == '{' || text[0] == '@' || text[0] == '`')
      fail(fmt::format("begins with {}, which is not supported", text[0]));
    if (text == "true" || text == "True") return true;
    if (text == "false" || text == "False") return false;
    std::int64_t whole = 0;
    const char* const end = text.data() + text.size();
    if (const auto read = std::from_chars(text.data(), end, whole); read.ec == std::errc() && read.ptr == end)
      return whole;
    double number = 0;
    const bool numeric = text.find_first_of("0123456789") != std::string::npos;
    if (const auto read = std::from_chars(text.data(), end, number);
        numeric && read.ec == std::errc() && read.ptr == end)
      return number;
    return text;
  }

  std::string quoted(const std::string& text) {
    const char quote = text[0];
    std::string value;
    std::size_t i = 1;
    for (; i < text.size(); ++i) {
      if (quote == '\'' && text[i] == '\'' && i + 1 < text.size() && text[i + 1] == '\'') {
        value += '\'';
        ++i;
      } else if (text[i] == quote) {
        break;
      } else if (quote == '"' && text[i] == '\\' && i + 1 < text.size()) {
        const char c = text[++i];
        if (c == 'n')
          value += '\n';
        else if (c == 't')
          value += '\t';
        else if (c == '"' || c == '\\' || c == '/')
          value += c;
        else
          fail(fmt::format("has the escape \\{}, which is not supported", c));
      } else {
        value += text[i];
      }
    }
    if (i + 1 != text.size()) fail("has a quote that does not end it");
    return value;
  }

  std::string source_;
  std::vector<YamlLine> lines_;
  std::size_t at_ = 0;
};

}  // namespace

ordered_json parse_yaml(std::string_view text, const std::string& source) { return YamlReader(text, source).read(); }

}  // namespace trireme::science
