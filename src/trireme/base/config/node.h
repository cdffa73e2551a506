// base/config/node.h -- a parsed TOML document as plain values with line numbers; the only user of toml++ is node.cpp.
//
// Depends on: error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::config {

struct Node {
  enum class Kind : std::uint8_t {
    kBool,
    kWhole,
    kReal,
    kText,
    kRaw,  ///< text after `--set key=`: read by the key's type
    kList,
    kTable,
    kDate,
  };
  Kind kind = Kind::kTable;
  bool boolean = false;
  std::int64_t whole = 0;
  double real = 0;
  std::string text;         // kText, kRaw
  std::vector<Node> items;  // kList
  struct Member;
  std::vector<Member> members;  // kTable, in the order of the file
  int line = 0;
};

struct Node::Member {
  std::string name;
  Node value;
};

/// A syntax error, with its line; turned into a Problem by the reader.
struct SyntaxError {
  std::string reason;
  int line = 0;
};

/// Throws SyntaxError.
Node parse_toml(std::string_view text);
/// What follows `key =` in TOML. Throws SyntaxError.
Node parse_toml_value(std::string_view text);

/// For messages: `the text "abc"`, "the number 3.5", "a list".
std::string found_text(const Node& node);

}  // namespace trireme::config
