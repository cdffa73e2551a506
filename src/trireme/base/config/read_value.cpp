#include "trireme/base/config/read_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "trireme/base/config.h"

namespace trireme::config {
namespace {

Reading accept(Value value) { return {.value = std::move(value)}; }
Reading refuse(std::string reason, std::string hint = {}) {
  return {.reason = std::move(reason), .hint = std::move(hint)};
}
using NodeKind = Node::Kind;

bool is_text(const Node& node) { return node.kind == NodeKind::kText || node.kind == NodeKind::kRaw; }

Field without_limits(const Field& field) {
  Field plain = field;
  plain.low = plain.high = std::nullopt;
  plain.list = plain.optional = false;
  return plain;
}

Reading wrong_type(const Field& field, const Node& node) {
  return refuse(fmt::format("expected {}, found {}", type_text(without_limits(field)), found_text(node)));
}

/// Runs a parser of units.h; its error becomes the refusal.
template <typename Parse>
Reading parsed(Parse parse) {
  try {
    return accept({std::int64_t{parse()}});
  } catch (const ConfigError& error) {
    return refuse(error.message(), error.hint());
  }
}

Reading read_bool(const Field& field, const Node& node) {
  if (node.kind == NodeKind::kBool) return accept({node.boolean});
  if (node.kind != NodeKind::kRaw) return wrong_type(field, node);
  const std::string_view text = trimmed(node.text);
  if (text == "true") return accept({true});
  if (text == "false") return accept({false});
  return refuse(fmt::format("expected true or false, found \"{}\"", node.text));
}

Reading read_whole(const Field& field, const Node& node) {
  if (node.kind == NodeKind::kWhole) return accept({node.whole});
  // "64" in quotes is text, unless the key takes units, which only text can have.
  const bool may_parse = node.kind == NodeKind::kRaw || (is_text(node) && field.unit != Unit::kNone);
  if (!may_parse) return wrong_type(field, node);
  return parsed([&] { return parse_quantity(node.text, field.unit); });
}

Reading read_real(const Field& field, const Node& node) {
  double value = 0;
  if (node.kind == NodeKind::kReal) {
    value = node.real;
  } else if (node.kind == NodeKind::kWhole) {
    value = static_cast<double>(node.whole);
  } else if (node.kind == NodeKind::kRaw) {
    const std::string_view text = trimmed(node.text);
    const auto got = std::from_chars(text.data(), text.data() + text.size(), value);
    if (got.ec != std::errc{} || got.ptr != text.data() + text.size()) {
      return refuse(fmt::format("\"{}\" is not a number", node.text), "write it like 0.1 or 3e-4");
    }
  } else {
    return wrong_type(field, node);
  }
  if (!std::isfinite(value)) return refuse(fmt::format("must be a finite number, but is {}", value));
  return accept({value});
}

Reading read_duration(const Field& field, const Node& node) {
  if (is_text(node)) return parsed([&] { return parse_duration(node.text).count(); });
  if (node.kind == NodeKind::kWhole || node.kind == NodeKind::kReal) {
    if (node.kind == NodeKind::kWhole && node.whole == 0) return accept({std::int64_t{0}});
    return refuse(fmt::format("expected a duration with its unit, found {}", found_text(node)),
                  R"(write it like "500us", "30s", "10m" or "2h")");
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

Reading read_text(const Field& field, const Node& node) {
  if (!is_text(node)) return wrong_type(field, node);
  std::string text = node.text;
  // Quotes that survived the shell: --set 'run.name="x"'.
  if (node.kind == NodeKind::kRaw && text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    text = text.substr(1, text.size() - 2);
  }
  if (!is_utf8(text)) return refuse("the text is not UTF-8");
  return accept({std::move(text)});
}

Reading read_choice(const Field& field, const Node& node) {
  const Reading text = read_text(field, node);
  if (text.refused()) return text;
  const auto& name = std::get<std::string>(text.value.of);
  if (std::ranges::find(field.choices, name) != field.choices.end()) return text;
  return refuse(fmt::format("\"{}\" is unknown{}", name, did_you_mean(name, field.choices)),
                fmt::format("one of {}", fmt::join(field.choices, ", ")));
}

Reading read_scalar(const Field& field, const Node& node) {
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

Reading checked(const Field& field, Reading reading) {
  if (reading.refused()) return reading;
  std::string rule;
  if (const auto* whole = std::get_if<std::int64_t>(&reading.value.of))
    rule = broken_rule(field, *whole, &Bound::whole);
  if (const auto* real = std::get_if<double>(&reading.value.of)) rule = broken_rule(field, *real, &Bound::real);
  if (rule.empty()) return reading;
  return refuse(fmt::format("must be {}, but is {}", rule, value_text(field, reading.value)));
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

Reading read_value(const Field& field, const Node& node) {
  if (field.optional && node.kind == NodeKind::kRaw && trimmed(node.text).empty()) return accept({});
  if (!field.list) return checked(field, read_scalar(field, node));
  if (node.kind != NodeKind::kList && node.kind != NodeKind::kRaw) {
    Field plain = without_limits(field);
    plain.list = true;
    return refuse(fmt::format("expected {}, found {}", type_text(plain), found_text(node)));
  }
  std::vector<Value> values;
  // `--set list=` empties it: raw_items() of nothing.
  const std::vector<Node> items = node.kind == NodeKind::kRaw ? raw_items(node) : node.items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Reading item = checked(field, read_scalar(field, items[i]));
    if (item.refused()) return refuse(fmt::format("item {} of the list: {}", i, item.reason), item.hint);
    values.push_back(std::move(item.value));
  }
  return accept({std::move(values)});
}

}  // namespace trireme::config
