// serve/chat/template_functions.h -- filters, tests, functions and methods that chat templates may use.
//
// Depends on: template_ast.h.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/serve/chat/template_ast.h"

namespace trireme::serve::chat {

struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
  /// By place or name; undefined where neither is given.
  Value get(std::size_t place, std::string_view name) const;
};

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_function(std::string_view name);
bool is_method(std::string_view name);

/// A ConfigError where the value is none that it works on.
Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments);
bool apply_test(std::string_view name, const Value& value);
/// An HttpError 400 from raise_exception(), whose words are the template's.
Value call_function(std::string_view name, const Arguments& arguments);
Value call_method(std::string_view name, const Value& value, const Arguments& arguments);

inline Value undefined() { return Value(Value::value_t::discarded); }
inline bool is_undefined(const Value& value) { return value.is_discarded(); }
bool is_true(const Value& value);
/// As {{ }} prints it: None, True, 1.0, lists as Python shows them.
std::string text_of(const Value& value);

}  // namespace trireme::serve::chat
