// serve/chat/template_ast.h -- a chat template as a tree: the part of Jinja that published templates are written in.
//
// Depends on: nlohmann json.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::serve::chat {

/// Texts, numbers, truth values, lists and mappings in order; null is none, and a discarded value is undefined.
using Value = nlohmann::ordered_json;

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind : std::uint8_t {
    kLiteral,      // value
    kName,         // name
    kList,         // children
    kMapping,      // children: key, value, key, value, ...
    kAttribute,    // children[0].name
    kIndex,        // children[0][children[1]]
    kSlice,        // children[0][children[1]:children[2]], null where left out
    kCall,         // name(children...), or children[0].name(children[1..]) where `is_method`
    kFilter,       // children[0] | name(children[1..])
    kTest,         // children[0] is (not) name
    kUnary,        // name: "not", "-"
    kBinary,       // name: the operator
    kConditional,  // children[0] if children[1] else children[2], null where left out
  };
  Kind kind = Kind::kLiteral;
  Value value = nullptr;
  std::string name = {};
  std::vector<ExpressionPtr> children = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};  // arguments by name
  bool is_method = false, negated = false;
  int line = 0;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Kind : std::uint8_t { kText, kPrint, kIf, kFor, kSet };
  Kind kind = Kind::kText;
  std::string text = {};                  // kText
  std::vector<std::string> targets = {};  // kFor: one name or two; kSet: a name, or namespace and attribute
  ExpressionPtr expression = nullptr;     // kPrint, kFor's list, kSet's value
  ExpressionPtr only_if = nullptr;        // kFor: for x in list if ...
  std::vector<std::pair<ExpressionPtr, Body>> branches = {};  // kIf; null: else. kFor: its body, and else with null
  int line = 0;
};

/// From the text of a template to its tree. A ConfigError with the line, naming the construct, for what is no Jinja or
/// not supported of it: macros, includes, inheritance, filters and tests that template_render.cpp does not have.
Body parse_template(std::string_view source);

}  // namespace trireme::serve::chat
