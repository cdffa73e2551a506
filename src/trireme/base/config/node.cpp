#include "trireme/base/config/node.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::config {
namespace {

Node to_node(const toml::node& from) {
  Node node;
  node.line = static_cast<int>(from.source().begin.line);
  if (const auto* table = from.as_table()) {
    node.kind = Node::Kind::kTable;
    for (const auto& [key, value] : *table) {
      auto& [name, member] = node.members.emplace_back(Node::Member{std::string(key.str()), to_node(value)});
      // A table that [a.b] made in passing has no place of its own: that of the key will do.
      if (member.line == 0) member.line = static_cast<int>(key.source().begin.line);
    }
    // toml++ sorts by name; people read problems in the order of their file.
    std::ranges::stable_sort(node.members, {}, [](const Node::Member& member) { return member.value.line; });
  } else if (const auto* array = from.as_array()) {
    node.kind = Node::Kind::kList;
    for (const toml::node& item : *array) node.items.push_back(to_node(item));
  } else if (const auto* text = from.as_string()) {
    node.kind = Node::Kind::kText;
    node.text = text->get();
  } else if (const auto* whole = from.as_integer()) {
    node.kind = Node::Kind::kWhole;
    node.whole = whole->get();
  } else if (const auto* real = from.as_floating_point()) {
    node.kind = Node::Kind::kReal;
    node.real = real->get();
  } else if (const auto* boolean = from.as_boolean()) {
    node.kind = Node::Kind::kBool;
    node.boolean = boolean->get();
  } else {
    node.kind = Node::Kind::kDate;
  }
  return node;
}

}  // namespace

Node parse_toml(std::string_view text) {
  try {
    return to_node(toml::parse(text));
  } catch (const toml::parse_error& error) {
    throw SyntaxError{std::string(error.description()), static_cast<int>(error.source().begin.line)};
  }
}

Node parse_toml_value(std::string_view text) {
  Node document = parse_toml(fmt::format("value = {}", text));
  // "1\nother = 2" is more than a value.
  if (document.members.size() != 1) throw SyntaxError{"it is more than one value", 1};
  return std::move(document.members.front().value);
}

std::string found_text(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kBool:
      return node.boolean ? "true" : "false";
    case Node::Kind::kWhole:
      return fmt::format("the number {}", node.whole);
    case Node::Kind::kReal:
      return fmt::format("the number {}", node.real);
    case Node::Kind::kText:
    case Node::Kind::kRaw:
      // Long texts are cut: a message is read on a terminal.
      return node.text.size() <= 60 ? fmt::format("the text \"{}\"", node.text)
                                    : fmt::format("a text of {} characters", node.text.size());
    case Node::Kind::kList:
      return fmt::format("a list of {}", node.items.size());
    case Node::Kind::kTable:
      return "a table";
    case Node::Kind::kDate:
      return "a date or time";
  }
  return "something else";
}

}  // namespace trireme::config
