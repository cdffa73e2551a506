#include <fmt/format.h>

#include <charconv>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/spec/import/import.h"

namespace trireme::spec {

namespace {

using config::Node;

/// The words of a shell line: quotes are taken off, a backslash joins lines.
std::vector<std::string> shell_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool begun = false;
  char quote = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c, begun = true;
    } else if (c == '\\' && at + 1 < text.size()) {
      if (text[at + 1] == '\n' || text[at + 1] == '\r') continue;  // the line goes on
      word += text[++at], begun = true;
    } else if (c == '#' && !begun) {
      while (at + 1 < text.size() && text[at + 1] != '\n') ++at;
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      if (begun) words.push_back(std::move(word));
      word.clear(), begun = false;
    } else {
      word += c, begun = true;
    }
  }
  if (quote != 0) throw ConfigError(fmt::format("the arguments have a {} that is not closed", quote), "close it");
  if (begun) words.push_back(std::move(word));
  return words;
}

bool is_argument(const std::string& word) { return word.starts_with("--") && word.size() > 2; }

}  // namespace

Node argument_value(const std::string& word) {
  Node node{.kind = Node::Kind::kText, .text = word, .items = {}, .members = {}};
  if (word.empty() || word.find_first_not_of("0123456789+-.eE") != std::string::npos) return node;
  const char *begin = word.data(), *const end = begin + word.size();
  if (const auto whole = std::from_chars(begin, end, node.whole); whole.ec == std::errc() && whole.ptr == end) {
    node.kind = Node::Kind::kWhole;
  } else if (const auto real = std::from_chars(begin, end, node.real); real.ec == std::errc() && real.ptr == end) {
    node.kind = Node::Kind::kReal;  // ".01" too, which is no number in TOML
  }
  return node;
}

Node parse_arguments(std::string_view text) {
  Node table;
  const std::vector<std::string> words = shell_words(text);
  for (std::size_t at = 0; at < words.size();) {
    if (!is_argument(words[at])) {
      throw ConfigError(fmt::format("\"{}\" stands before any argument", words[at]),
                        "give what stands behind the program: \"--num-layers 24 --hidden-size 1024 ...\"");
    }
    std::string name = words[at].substr(2);
    std::vector<std::string> values;
    if (const std::size_t equals = name.find('='); equals != std::string::npos) {
      values.push_back(name.substr(equals + 1));
      name.resize(equals);
    }
    for (++at; at < words.size() && !is_argument(words[at]); ++at) values.push_back(words[at]);
    Node value{.kind = Node::Kind::kBool, .boolean = true, .text = {}, .items = {}, .members = {}};
    if (values.size() == 1) {
      value = argument_value(values[0]);
    } else if (values.size() > 1) {
      value = {.kind = Node::Kind::kList, .text = {}, .items = {}, .members = {}};
      for (const std::string& one : values) value.items.push_back(argument_value(one));
    }
    // As argparse has it, the last one counts.
    std::erase_if(table.members, [&](const Node::Member& member) {
      if (member.name != name) return false;
      if (foreign_text(member.value) != foreign_text(value))
        log_warn("--{} is there as {} and again as {}, which counts", name, foreign_text(member.value),
                 foreign_text(value));
      return true;
    });
    table.members.push_back({.name = std::move(name), .value = std::move(value)});
  }
  return table;
}

}  // namespace trireme::spec
