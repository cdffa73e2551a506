// From the schema to text: the values as TOML, and the documentation of every key.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "trireme/base/config.h"

namespace trireme::config {
namespace {

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Text with a unit needs quotes in TOML; a bare number does not.
std::string quantity(std::string text) {
  const bool number = std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || c == '-'; });
  return number ? text : in_quotes(text);
}

std::string whole_text(const Field& field, std::int64_t value) {
  return field.kind == Kind::kDuration ? exact_duration(std::chrono::nanoseconds(value))
                                       : exact_quantity(value, field.unit);
}

std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  // A whole number would still read as a real one, but should not look like an integer key.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string limits_text(const Field& field) {
  // The ends that the C++ type alone sets would only be noise.
  const bool low = field.low && (field.kind == Kind::kReal || field.low->whole != std::numeric_limits<int>::min());
  const bool high = field.high && (field.kind == Kind::kReal || field.high->whole != std::numeric_limits<int>::max());
  if (low && high && field.low->included) {
    return fmt::format(" from {} to {}", bound_text(field, *field.low), bound_text(field, *field.high));
  }
  std::string out;
  if (low) out += fmt::format(", {} {}", field.low->included ? "at least" : "above", bound_text(field, *field.low));
  if (high) out += fmt::format("{} at most {}", low ? " and" : ",", bound_text(field, *field.high));
  return out;
}

std::string kind_text(const Field& field) {
  switch (field.kind) {
    case Kind::kBool:
      return "true or false";
    case Kind::kWhole:
      switch (field.unit) {
        case Unit::kNone:
          return "a whole number";
        case Unit::kBytes:
          return "a size in bytes";
        case Unit::kCount:
          return "a count";
        case Unit::kBandwidth:
          return "a bandwidth";
      }
      break;
    case Kind::kReal:
      return "a number";
    case Kind::kText:
      return "a text";
    case Kind::kChoice:
      return fmt::format("one of {}", fmt::join(field.choices, ", "));
    case Kind::kDuration:
      return "a duration";
  }
  return "?";
}

std::string heading(const std::string& path, bool list) {
  if (path.empty()) return {};
  return list ? fmt::format("[[{}]]", path) : fmt::format("[{}]", path);
}

/// Goes over all sections; `visit` gets the heading ("[comm]", "[[data]]") and the schema.
template <typename Visit>
void for_each_section(const Schema& schema, const std::string& path, bool list, const Visit& visit) {
  visit(heading(path, list), schema);
  for (const Part& part : schema.parts) {
    for_each_section(*part.schema, path.empty() ? part.name : fmt::format("{}.{}", path, part.name), part.list, visit);
  }
}

class TomlWriter {
 public:
  explicit TomlWriter(const Origins* origins) : origins_(origins) {}

  /// `header` as the file has it ("data"), `path` as origins have it ("data.0").
  void section(const Schema& schema, const void* object, const std::string& header, const std::string& path,
               bool list = false) {
    if (!header.empty() && (!schema.fields.empty() || list)) {
      out_ += fmt::format("{}{}\n", out_.empty() ? "" : "\n", heading(header, list));
    }
    fields(schema, object, path);
    const auto join = [](const std::string& base, const std::string& name) {
      return base.empty() ? name : fmt::format("{}.{}", base, name);
    };
    for (const Part& part : schema.parts) {
      const std::string below = join(path, part.name);
      for (std::size_t i = 0; i < part.size(object); ++i) {
        section(*part.schema, part.at(object, i), join(header, part.name),
                part.list ? fmt::format("{}.{}", below, i) : below, part.list);
      }
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void fields(const Schema& schema, const void* object, const std::string& path) {
    std::vector<std::pair<std::string, std::string>> lines;  // text, origin
    std::size_t width = 0;
    for (const Field& field : schema.fields) {
      const Value value = field.get(object);
      const bool unset = std::holds_alternative<std::monostate>(value.of);
      auto& [text, origin] = lines.emplace_back();
      text = fmt::format("{}{} = {}", unset ? "# " : "", field.name, value_text(field, value));
      origin = origin_of(path.empty() ? field.name : fmt::format("{}.{}", path, field.name));
      width = std::max(width, columns_of(text));
    }
    for (const auto& [text, origin] : lines) {
      out_ += text;
      if (!origin.empty()) out_.append(width - columns_of(text) + 2, ' ').append("# ").append(origin);
      out_ += '\n';
    }
  }
  std::string origin_of(const std::string& key) const {
    if (origins_ == nullptr) return {};
    const auto found = origins_->find(key);
    if (found == origins_->end()) return "default";
    // A path may hold anything but what would end the comment.
    std::string origin = found->second;
    std::ranges::replace_if(
        origin, [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }, '?');
    return origin;
  }

  const Origins* origins_;
  std::string out_;
};

constexpr std::size_t kMarkdownColumns = 116;

std::string default_text(const Field& field, const Schema& schema) {
  return field.required ? "(must be given)" : value_text(field, field.get(schema.defaults.get()));
}

}  // namespace

std::string bound_text(const Field& field, const Bound& bound) {
  return field.kind == Kind::kReal ? fmt::format("{}", bound.real) : whole_text(field, bound.whole);
}

std::string type_text(const Field& field) {
  const std::string one = kind_text(field) + limits_text(field);
  const std::string all = field.list ? fmt::format("a list, each {}", one) : one;
  return field.optional ? fmt::format("{}, or unset", all) : all;
}

std::string value_text(const Field& field, const Value& value) {
  if (std::holds_alternative<std::monostate>(value.of)) return "(unset)";
  if (const auto* boolean = std::get_if<bool>(&value.of)) return *boolean ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&value.of)) return quantity(whole_text(field, *whole));
  if (const auto* real = std::get_if<double>(&value.of)) return real_text(*real);
  if (const auto* text = std::get_if<std::string>(&value.of)) return in_quotes(*text);
  std::vector<std::string> items;
  for (const Value& item : std::get<std::vector<Value>>(value.of)) items.push_back(value_text(field, item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string write_toml(const Schema& schema, const void* object, const Origins* origins) {
  TomlWriter writer(origins);
  writer.section(schema, object, "", "");
  return writer.take();
}

namespace {

void add_values(const Schema& schema, const void* object, const std::string& path,
                std::map<std::string, std::string>& values) {
  const std::string prefix = path.empty() ? "" : path + ".";
  for (const Field& field : schema.fields) values[prefix + field.name] = value_text(field, field.get(object));
  for (const Part& part : schema.parts) {
    for (std::size_t i = 0; i < part.size(object); ++i) {
      add_values(*part.schema, part.at(object, i),
                 part.list ? fmt::format("{}{}.{}", prefix, part.name, i) : prefix + part.name, values);
    }
  }
}

}  // namespace

std::vector<std::string> differences(const Schema& schema, const void* left, const void* right) {
  std::map<std::string, std::string> all[2];
  add_values(schema, left, "", all[0]);
  add_values(schema, right, "", all[1]);
  std::map<std::string, std::pair<std::string, std::string>> both;
  for (const auto& [key, value] : all[0]) both[key].first = value;
  for (const auto& [key, value] : all[1]) both[key].second = value;
  std::vector<std::string> out;
  for (const auto& [key, values] : both) {
    if (values.first == values.second) continue;
    const auto text = [](const std::string& value) { return value.empty() ? std::string("(not there)") : value; };
    out.push_back(fmt::format("{}: {} and {}", key, text(values.first), text(values.second)));
  }
  return out;
}

std::string docs_text(const Schema& schema, std::size_t width) {
  std::string out;
  for_each_section(schema, "", false, [&](const std::string& title, const Schema& section) {
    if (section.fields.empty() && section.meaning.empty()) return;
    out += fmt::format("{}{}{}{}\n", out.empty() ? "" : "\n", title, title.empty() ? "" : "  ", section.meaning);
    for (const Field& field : section.fields) {
      out += fmt::format("  {} = {}\n", field.name, default_text(field, section));
      for (const std::string& line :
           wrapped(fmt::format("{} ({})", field.meaning, type_text(field)), width > 20 ? width - 6 : 14)) {
        out += fmt::format("      {}\n", line);
      }
    }
  });
  for (const auto& [name, purpose] : schema.reserved) out += fmt::format("\n[{}]  reserved for {}\n", name, purpose);
  return out;
}

std::string docs_markdown(const Schema& schema) {
  std::string out;
  for_each_section(schema, "", false, [&](const std::string& title, const Schema& section) {
    if (!title.empty()) out += fmt::format("{}## `{}`\n\n", out.empty() ? "" : "\n", title);
    if (!section.meaning.empty()) out += fmt::format("{}\n", section.meaning);
    if (section.fields.empty()) return;
    if (!section.meaning.empty()) out += '\n';
    for (const Field& field : section.fields) {
      // A list, not a table: lines fit a screen, so that a changed word is a small difference.
      const std::string text = fmt::format("- `{} = {}`: {} ({})", field.name, default_text(field, section),
                                           field.meaning, type_text(field));
      out += fmt::format("{}\n", fmt::join(wrapped(text, kMarkdownColumns), "\n  "));
    }
  });
  if (!schema.reserved.empty())
    out += "\n## Reserved\n\nNames of sections that mean nothing yet; a recipe that has one is refused.\n\n";
  for (const auto& [name, purpose] : schema.reserved) out += fmt::format("- `[{}]`: {}\n", name, purpose);
  return out;
}

}  // namespace trireme::config
