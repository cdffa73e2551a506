#include "trireme/serve/chat/template_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/formats/json_text.h"
#include "trireme/formats/utf8.h"
#include "trireme/http/message.h"

namespace trireme::serve::chat {
namespace {

constexpr std::array<std::string_view, 18> kFilters{"trim",  "tojson",  "length", "count",   "upper",      "lower",
                                                    "join",  "default", "d",      "list",    "first",      "last",
                                                    "items", "string",  "int",    "replace", "capitalize", "safe"};
constexpr std::array<std::string_view, 14> kTests{"defined",  "undefined", "none",   "string",  "mapping",
                                                  "sequence", "iterable",  "number", "boolean", "true",
                                                  "false",    "integer",   "odd",    "even"};
constexpr std::array<std::string_view, 3> kFunctions{"raise_exception", "namespace", "range"};
constexpr std::array<std::string_view, 14> kMethods{"strip",    "lstrip", "rstrip",  "split", "startswith",
                                                    "endswith", "upper",  "lower",   "items", "get",
                                                    "keys",     "values", "replace", "title"};
constexpr std::int64_t kMostItems = 100000;

[[noreturn]] void refuse_template(const std::string& what) {
  throw ConfigError(fmt::format("the chat template {}", what), "give another template with --chat-template FILE");
}

const std::string& text_argument(const Value& value, std::string_view of) {
  if (!value.is_string()) refuse_template(fmt::format("uses {} on what is no text: {}", of, text_of(value)));
  return value.get_ref<const std::string&>();
}

std::string stripped(std::string_view text, std::string_view characters, bool left, bool right) {
  const std::string_view set = characters.empty() ? std::string_view(" \t\n\r\v\f") : characters;
  if (left) text.remove_prefix(std::min(text.find_first_not_of(set), text.size()));
  if (right) text = text.substr(0, text.find_last_not_of(set) + 1);
  return std::string(text);
}

/// ASCII letters; what published templates do to roles.
std::string with_case(std::string text, bool upper) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 128) c = static_cast<char>(upper ? std::toupper(byte) : std::tolower(byte));
  }
  return text;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) refuse_template("replaces an empty text");
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(from, at);
    out += text.substr(at, found - at);
    if (found == std::string_view::npos) return out;
    out += to;
    at = found + from.size();
  }
}

std::int64_t length_of(const Value& value) {
  if (value.is_string()) {
    std::int64_t characters = 0;
    for (std::string_view rest = value.get_ref<const std::string&>(); !rest.empty(); ++characters) {
      rest.remove_prefix(std::max<std::size_t>(1, formats::utf8_length(rest)));
    }
    return characters;
  }
  if (value.is_array() || value.is_object()) return static_cast<std::int64_t>(value.size());
  refuse_template(fmt::format("asks for the length of {}", text_of(value)));
}

Value items_of(const Value& value) {
  if (!value.is_object()) refuse_template(fmt::format("asks for the items of {}", text_of(value)));
  Value out = Value::array();
  for (const auto& [key, each] : value.items()) out.push_back(Value::array({key, each}));
  return out;
}

/// json.dumps of Hugging Face's filter: no ASCII escapes, ", " and ": " between, perhaps in lines.
void dump_json(std::string& out, const Value& value, std::int64_t indent, std::int64_t depth) {
  const auto line = [&](std::int64_t level) {
    if (indent > 0) out += '\n' + std::string(static_cast<std::size_t>(level * indent), ' ');
  };
  const auto members = [&](char open, char close, const auto& each_of) {
    out += open;
    bool first = true;
    each_of([&](const auto& write) {
      if (!first) out += indent > 0 ? "," : ", ";
      first = false;
      line(depth + 1);
      write();
    });
    if (!first) line(depth);
    out += close;
  };
  if (value.is_object()) {
    members('{', '}', [&](const auto& each) {
      for (const auto& [key, of] : value.items()) {
        each([&] {
          out += formats::json_string(key) + ": ";
          dump_json(out, of, indent, depth + 1);
        });
      }
    });
  } else if (value.is_array()) {
    members('[', ']', [&](const auto& each) {
      for (const auto& of : value) each([&] { dump_json(out, of, indent, depth + 1); });
    });
  } else if (value.is_string()) {
    out += formats::json_string(value.get_ref<const std::string&>());
  } else if (value.is_number_float()) {
    out += formats::python_double(value.get<double>());
  } else {
    out += value.dump();
  }
}

}  // namespace

Value Arguments::get(std::size_t place, std::string_view name) const {
  if (place < values.size()) return values[place];
  const auto found = std::ranges::find(named, name, [](const auto& pair) { return std::string_view(pair.first); });
  return found == named.end() ? undefined() : found->second;
}

bool is_filter(std::string_view name) { return std::ranges::find(kFilters, name) != kFilters.end(); }
bool is_test(std::string_view name) { return std::ranges::find(kTests, name) != kTests.end(); }
bool is_function(std::string_view name) { return std::ranges::find(kFunctions, name) != kFunctions.end(); }
bool is_method(std::string_view name) { return std::ranges::find(kMethods, name) != kMethods.end(); }

bool is_true(const Value& value) {
  if (is_undefined(value) || value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_float()) return value.get<double>() != 0;
  if (value.is_number()) return value.get<std::int64_t>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

namespace {

/// As Python's repr() has it, for texts within lists.
std::string shown_inside(const Value& value) {
  if (!value.is_string()) return text_of(value);
  std::string out = "'";
  for (const char c : value.get_ref<const std::string&>()) {
    if (c == '\'' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace

std::string text_of(const Value& value) {
  if (is_undefined(value)) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number_float()) return formats::python_double(value.get<double>());
  if (value.is_number()) return value.dump();
  std::string out;
  if (value.is_array()) {
    for (const auto& each : value) out += (out.empty() ? "" : ", ") + shown_inside(each);
    return "[" + out + "]";
  }
  for (const auto& [key, each] : value.items()) {
    out += (out.empty() ? "" : ", ") + shown_inside(Value(key)) + ": " + shown_inside(each);
  }
  return "{" + out + "}";
}

Value apply_filter(std::string_view name, const Value& value, const Arguments& arguments) {
  if (name == "default" || name == "d") {
    const bool also_false = is_true(arguments.get(1, "boolean"));
    if (!is_undefined(value) && (!also_false || is_true(value))) return value;
    const Value other = arguments.get(0, "default_value");
    return is_undefined(other) ? Value("") : other;
  }
  if (name == "tojson") {
    if (is_undefined(value)) refuse_template("writes an undefined value as JSON");
    const Value indent = arguments.get(0, "indent");
    std::string out;
    dump_json(out, value, indent.is_number_integer() ? std::clamp<std::int64_t>(indent.get<std::int64_t>(), 0, 16) : 0,
              0);
    return out;
  }
  if (name == "length" || name == "count") return is_undefined(value) ? Value(0) : Value(length_of(value));
  if (name == "string" || name == "safe") return text_of(value);
  if (name == "items") return items_of(value);
  if (name == "list") {
    if (value.is_array()) return value;
    if (!value.is_object()) refuse_template(fmt::format("makes a list of {}", text_of(value)));
    Value keys = Value::array();
    for (const auto& [key, each] : value.items()) keys.push_back(key);
    return keys;
  }
  if (name == "first" || name == "last") {
    if (!value.is_array()) refuse_template(fmt::format("takes the {} of {}", name, text_of(value)));
    if (value.empty()) return undefined();
    return name == "first" ? value.front() : value.back();
  }
  if (name == "join") {
    if (!value.is_array()) refuse_template(fmt::format("joins {}", text_of(value)));
    const std::string between = text_of(arguments.get(0, "d"));
    std::string out;
    for (std::size_t i = 0; i < value.size(); ++i) out += (i > 0 ? between : "") + text_of(value[i]);
    return out;
  }
  if (name == "int") {
    if (value.is_number_float()) return static_cast<std::int64_t>(value.get<double>());
    if (value.is_number()) return value;
    refuse_template(fmt::format("makes a number of {}", text_of(value)));
  }
  const std::string text = text_of(value);
  if (name == "trim") return stripped(text, {}, true, true);
  if (name == "upper" || name == "lower") return with_case(text, name == "upper");
  if (name == "capitalize") {
    return text.empty() ? text : with_case(text.substr(0, 1), true) + with_case(text.substr(1), false);
  }
  // replace
  return replaced(text, text_argument(arguments.get(0, "old"), "replace"),
                  text_argument(arguments.get(1, "new"), "replace"));
}

bool apply_test(std::string_view name, const Value& value) {
  if (name == "defined") return !is_undefined(value);
  if (name == "undefined") return is_undefined(value);
  if (is_undefined(value)) return false;
  if (name == "none") return value.is_null();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_object();
  if (name == "sequence" || name == "iterable") return value.is_array() || value.is_string() || value.is_object();
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is_number_integer();
  if (name == "boolean") return value.is_boolean();
  if (name == "true") return value.is_boolean() && value.get<bool>();
  if (name == "false") return value.is_boolean() && !value.get<bool>();
  if (!value.is_number_integer()) return false;
  return (value.get<std::int64_t>() % 2 != 0) == (name == "odd");
}

Value call_function(std::string_view name, const Arguments& arguments) {
  if (name == "raise_exception") {
    throw http::HttpError(400, fmt::format("the chat template says: {}", text_of(arguments.get(0, "message"))),
                          {.param = "messages"});
  }
  if (name == "namespace") {
    Value out = Value::object();
    for (const auto& [key, value] : arguments.named) out[key] = value;
    return out;
  }
  // range
  const auto whole = [&](std::size_t place, std::int64_t otherwise) {
    const Value value = arguments.get(place, "");
    if (is_undefined(value)) return otherwise;
    if (!value.is_number_integer()) refuse_template("gives range() what is no whole number");
    return value.get<std::int64_t>();
  };
  const bool two = arguments.values.size() > 1;
  const std::int64_t begin = two ? whole(0, 0) : 0, end = two ? whole(1, 0) : whole(0, 0), by = whole(2, 1);
  if (by == 0 || std::abs(static_cast<double>(end) - static_cast<double>(begin)) > kMostItems) {
    refuse_template(fmt::format("counts from {} to {} by {}", begin, end, by));
  }
  Value out = Value::array();
  for (std::int64_t i = begin; by > 0 ? i < end : i > end; i += by) out.push_back(i);
  return out;
}

Value call_method(std::string_view name, const Value& value, const Arguments& arguments) {
  if (name == "items") return items_of(value);
  if (name == "keys" || name == "values") {
    if (!value.is_object()) refuse_template(fmt::format("asks for the {} of {}", name, text_of(value)));
    Value out = Value::array();
    for (const auto& [key, each] : value.items()) out.push_back(name == "keys" ? Value(key) : each);
    return out;
  }
  if (name == "get") {
    if (!value.is_object()) refuse_template(fmt::format("calls .get() of {}", text_of(value)));
    const auto found = value.find(text_argument(arguments.get(0, "key"), ".get()"));
    if (found != value.end()) return *found;
    const Value other = arguments.get(1, "default");
    return is_undefined(other) ? Value(nullptr) : other;
  }
  const std::string& text = text_argument(value, fmt::format(".{}()", name));
  const Value first = arguments.get(0, "");
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const std::string characters = is_undefined(first) ? "" : text_argument(first, ".strip()");
    return stripped(text, characters, name != "rstrip", name != "lstrip");
  }
  if (name == "upper" || name == "lower") return with_case(text, name == "upper");
  if (name == "title") {
    std::string out = with_case(text, false);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (i == 0 || std::isalpha(static_cast<unsigned char>(out[i - 1])) == 0) {
        out[i] = with_case(std::string(1, out[i]), true)[0];
      }
    }
    return out;
  }
  if (name == "startswith") return text.starts_with(text_argument(first, ".startswith()"));
  if (name == "endswith") return text.ends_with(text_argument(first, ".endswith()"));
  if (name == "replace") {
    return replaced(text, text_argument(first, ".replace()"), text_argument(arguments.get(1, "new"), ".replace()"));
  }
  // split
  Value out = Value::array();
  if (is_undefined(first)) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = std::min(text.find_first_not_of(" \t\n\r\v\f", at), text.size());
      const std::size_t end = std::min(text.find_first_of(" \t\n\r\v\f", begin), text.size());
      if (end > begin) out.push_back(text.substr(begin, end - begin));
      at = end;
    }
    return out;
  }
  const std::string& between = text_argument(first, ".split()");
  if (between.empty()) refuse_template("splits at an empty text");
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(between, at);
    out.push_back(text.substr(at, found - at));
    if (found == std::string::npos) return out;
    at = found + between.size();
  }
}

}  // namespace trireme::serve::chat
