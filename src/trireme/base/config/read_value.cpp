#include "trireme/base/config/read_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "trireme/base/config.h"

namespace trireme::config {
namespace {

using Result = std::variant<Value, Refusal>;
using NodeKind = Node::Kind;

bool is_text(const Node& node) { return node.kind == NodeKind::kText || node.kind == NodeKind::kRaw; }

Field without_limits(const Field& field) {
  Field plain = field;
  plain.low = plain.high = std::nullopt;
  plain.list = plain.optional = false;
  return plain;
}

Refusal wrong_type(const Field& field, const Node& node) {
  return {fmt::format("expected {}, found {}", type_text(without_limits(field)), found_text(node)), {}};
}

/// Runs a parser of units.h; its error becomes the refusal.
template <typename Parse>
Result parsed(Parse parse) {
  try {
    return Value{std::int64_t{parse()}};
  } catch (const ConfigError& error) {
    return Refusal{error.message(), error.hint()};
  }
}

Result read_bool(const Field& field, const Node& node) {
  if (node.kind == NodeKind::kBool) return Value{node.boolean};
  if (node.kind != NodeKind::kRaw) return wrong_type(field, node);
  const std::string_view text = trimmed(node.text);
  if (text == "true") return Value{true};
  if (text == "false") return Value{false};
  return Refusal{fmt::format("expected true or false, found \"{}\"", node.text), {}};
}

Result read_whole(const Field& field, const Node& node) {
  if (node.kind == NodeKind::kWhole) return Value{node.whole};
  // "64" in quotes is text, unless the key takes units, which only text can have.
  const bool may_parse = node.kind == NodeKind::kRaw || (is_text(node) && field.unit != Unit::kNone);
  if (!may_parse) return wrong_type(field, node);
  return parsed([&] { return parse_quantity(node.text, field.unit); });
}

Result read_real(const Field& field, const Node& node) {
  double value = 0;
  if (node.kind == NodeKind::kReal) {
    value = node.real;
  } else if (node.kind == NodeKind::kWhole) {
    value = static_cast<double>(node.whole);
  } else if (node.kind == NodeKind::kRaw) {
    const std::string_view text = trimmed(node.text);
    const auto got = std::from_chars(text.data(), text.data() + text.size(), value);
    if (got.ec != std::errc{} || got.ptr != text.data() + text.size()) {
      return Refusal{fmt::format("\"{}\" is not a number", node.text), "write it like 0.1 or 3e-4"};
    }
  } else {
    return wrong_type(field, node);
  }
  if (!std::isfinite(value)) return Refusal{fmt::format("must be a finite number, but is {}", value), {}};
  return Value{value};
}

Result read_duration(const Field& field, const Node& node) {
  if (is_text(node)) return parsed([&] { return parse_duration(node.text).count(); });
  if (node.kind == NodeKind::kWhole || node.kind == NodeKind::kReal) {
    if (node.kind == NodeKind::kWhole && node.whole == 0) return Value{std::int64_t{0}};
    return Refusal{fmt::format("expected a duration with its unit, found {}", found_text(node)),
                   R"(write it like "500us", "30s", "10m" or "2h")"};
  }
  return wrong_type(field, node);
}

/// What could not be written back as TOML is not taken either.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return false;
    std::uint32_t point = length == 1 ? lead : lead & (0x7FU >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if (next >> 6 != 2) return false;
      point = point << 6 | (next & 0x3FU);
    }
    constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < kSmallest[length] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) return false;
    i += length;
  }
  return true;
}

Result read_text(const Field& field, const Node& node) {
  if (!is_text(node)) return wrong_type(field, node);
  std::string text = node.text;
  // Quotes that survived the shell: --set 'run.name="x"'.
  if (node.kind == NodeKind::kRaw && text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text = text.substr(1, text.size() - 2);
  }
  if (!is_utf8(text)) return Refusal{"the text is not UTF-8", {}};
  return Value{std::move(text)};
}

Result read_choice(const Field& field, const Node& node) {
  const Result text = read_text(field, node);
  if (std::holds_alternative<Refusal>(text)) return text;
  const auto& name = std::get<std::string>(std::get<Value>(text).of);
  if (std::ranges::find(field.choices, name) != field.choices.end()) return text;
  return Refusal{fmt::format("\"{}\" is unknown{}", name, did_you_mean(name, field.choices)),
                 fmt::format("one of {}", fmt::join(field.choices, ", "))};
}

Result read_scalar(const Field& field, const Node& node) {
  switch (field.kind) {
    case Kind::kBool:
      return read_bool(field, node);
    case Kind::kWhole:
      return read_whole(field, node);
    case Kind::kReal:
      return read_real(field, node);
    case Kind::kText:
      return read_text(field, node);
    case Kind::kChoice:
      return read_choice(field, node);
    case Kind::kDuration:
      return read_duration(field, node);
  }
  throw InternalError("a field of no kind");
}

/// What rule of the field the value breaks, in words; empty when it keeps them.
template <typename Number>
std::string broken_rule(const Field& field, Number value, Number Bound::*end) {
  if (field.low) {
    const Bound& low = *field.low;
    if (value < low.*end || (!low.included && value == low.*end)) {
      return fmt::format("{} {}", low.included ? "at least" : "above", bound_text(field, low));
    }
  }
  if (field.high && value > (*field.high).*end) return fmt::format("at most {}", bound_text(field, *field.high));
  return {};
}

Result checked(const Field& field, Result result) {
  const auto* value = std::get_if<Value>(&result);
  if (value == nullptr) return result;
  std::string rule;
  if (const auto* whole = std::get_if<std::int64_t>(&value->of)) rule = broken_rule(field, *whole, &Bound::whole);
  if (const auto* real = std::get_if<double>(&value->of)) rule = broken_rule(field, *real, &Bound::real);
  if (rule.empty()) return result;
  return Refusal{fmt::format("must be {}, but is {}", rule, value_text(field, *value)), {}};
}

/// The items of a list given as `--set key=a,b` or `--set key=[a, b]`.
std::vector<Node> raw_items(const Node& node) {
  std::string_view text = trimmed(node.text);
  if (text.starts_with('[') && text.ends_with(']') && text.size() >= 2) {
    try {
      Node list = parse_toml_value(text);
      if (list.kind == NodeKind::kList) return std::move(list.items);
    } catch (const SyntaxError&) {  // [a, b]: words without quotes, as everywhere in --set
    }
    text = trimmed(text.substr(1, text.size() - 2));
  }
  std::vector<Node> items;
  if (text.empty()) return items;
  for (const std::string& part : split(text, ',')) {
    Node item;
    item.kind = NodeKind::kRaw;
    item.text = trimmed(part);
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace

std::variant<Value, Refusal> read_value(const Field& field, const Node& node) {
  if (field.optional && node.kind == NodeKind::kRaw && trimmed(node.text).empty()) return Value{};
  if (!field.list) return checked(field, read_scalar(field, node));
  if (node.kind != NodeKind::kList && node.kind != NodeKind::kRaw) {
    Field plain = without_limits(field);
    plain.list = true;
    return Refusal{fmt::format("expected {}, found {}", type_text(plain), found_text(node)), {}};
  }
  std::vector<Value> values;
  const std::vector<Node> items = node.kind == NodeKind::kRaw ? raw_items(node) : node.items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Result item = checked(field, read_scalar(field, items[i]));
    if (auto* refusal = std::get_if<Refusal>(&item)) {
      return Refusal{fmt::format("item {} of the list: {}", i, refusal->reason), refusal->hint};
    }
    values.push_back(std::get<Value>(std::move(item)));
  }
  return Value{std::move(values)};
}

}  // namespace trireme::config
