#include "trireme/experiment/space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"

namespace trireme::experiment {
namespace {

using Kind = Parameter::Kind;

struct KindName {
  std::string_view name;
  Kind kind;
  const char* example;
};
constexpr KindName kKinds[] = {
    {"uniform", Kind::kUniform, "uniform(0,0.2)"},
    {"log", Kind::kLog, "log(1e-5,1e-2)"},
    {"int", Kind::kInt, "int(2,8)"},
    {"logint", Kind::kLogInt, "logint(64,1024)"},
    {"choice", Kind::kChoice, "choice(cosine,constant)"},
};

const KindName& name_of(Kind kind) { return *std::ranges::find(kKinds, kind, &KindName::kind); }

bool is_whole(Kind kind) { return kind == Kind::kInt || kind == Kind::kLogInt; }
bool is_log(Kind kind) { return kind == Kind::kLog || kind == Kind::kLogInt; }

std::optional<double> parsed_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

[[noreturn]] void refuse(std::string_view text, const std::string& why, const std::string& hint) {
  throw ConfigError(fmt::format("the parameter \"{}\" {}", text, why), hint);
}

std::string forms() {
  std::vector<std::string> examples;
  for (const KindName& known : kKinds) examples.emplace_back(known.example);
  return fmt::format("a range is one of {}", fmt::join(examples, ", "));
}

/// "name(arguments)" after the '='.
struct Call {
  std::string name, arguments;
};
Call parse_call(std::string_view text, std::string_view range) {
  const std::size_t open = range.find('(');
  if (open == std::string_view::npos || !range.ends_with(')')) {
    refuse(text, "has no range after '='",
           fmt::format("{}; a fixed value belongs into --set {}", forms(), std::string(text)));
  }
  return {.name = std::string(trimmed(range.substr(0, open))),
          .arguments = std::string(trimmed(range.substr(open + 1, range.size() - open - 2)))};
}

void read_choices(std::string_view text, const std::string& arguments, Parameter& parameter) {
  const char separator = arguments.find('|') != std::string::npos ? '|' : ',';
  for (const std::string& word : split(arguments, separator)) parameter.choices.emplace_back(trimmed(word));
  const bool empty = std::ranges::any_of(parameter.choices, &std::string::empty);
  if (parameter.choices.size() < 2 || empty) {
    refuse(text, empty ? "has a choice without a value" : "has one choice only",
           fmt::format("write choice(A,B) with two values or more; a fixed value belongs into --set {}=VALUE",
                       parameter.key));
  }
  for (std::size_t i = 0; i < parameter.choices.size(); ++i) {
    if (std::ranges::count(parameter.choices, parameter.choices[i]) > 1) {
      refuse(text, fmt::format("has the choice \"{}\" twice", parameter.choices[i]), "leave one of them out");
    }
  }
}

void read_range(std::string_view text, const std::string& arguments, Parameter& parameter) {
  const KindName& kind = name_of(parameter.kind);
  const std::vector<std::string> words = split(arguments, ',');
  if (words.size() < 2 || words.size() > 3) {
    refuse(text, fmt::format("has {} in its range, not a low and a high end", counted(words.size(), "number")),
           fmt::format("write {}={}", parameter.key, kind.example));
  }
  std::vector<double> numbers;
  for (const std::string& word : words) {
    const auto number = parsed_number(trimmed(word));
    if (!number) {
      refuse(text, fmt::format("has \"{}\", which is not a number", trimmed(word)),
             fmt::format("write {}={}", parameter.key, kind.example));
    }
    numbers.push_back(*number);
  }
  parameter.low = numbers[0];
  parameter.high = numbers[1];
  if (!(parameter.low < parameter.high)) {
    refuse(text, fmt::format("has a range from {} to {}", parameter.low, parameter.high),
           parameter.low > parameter.high
               ? fmt::format("write the low end first: {}={}({},{})", parameter.key, kind.name, parameter.high,
                             parameter.low)
               : fmt::format("a fixed value belongs into --set {}={}", parameter.key, parameter.low));
  }
  if (is_log(parameter.kind) && parameter.low <= 0) {
    refuse(text, fmt::format("has a logarithmic range from {}, and zero has no logarithm", parameter.low),
           fmt::format("begin above zero, or write {}={}({},{})", parameter.key,
                       is_whole(parameter.kind) ? "int" : "uniform", parameter.low, parameter.high));
  }
  if (is_whole(parameter.kind) &&
      (std::floor(parameter.low) != parameter.low || std::floor(parameter.high) != parameter.high)) {
    refuse(text, "is of whole numbers and has ends that are none",
           fmt::format("round them, or write {}={}({},{})", parameter.key, is_log(parameter.kind) ? "log" : "uniform",
                       parameter.low, parameter.high));
  }
  if (numbers.size() == 3) {
    if (numbers[2] != std::floor(numbers[2]) || numbers[2] < 2 || numbers[2] > 1e6) {
      refuse(text, fmt::format("asks for {} values in a grid", numbers[2]),
             "the third number counts the values of a grid: 2 or more");
    }
    parameter.points = static_cast<int>(numbers[2]);
  }
}

/// The ends in the scale that values are spread evenly on; whole numbers own the interval up to the next.
double scaled(const Parameter& parameter, double value) { return is_log(parameter.kind) ? std::log(value) : value; }
double scaled_high(const Parameter& parameter) {
  return scaled(parameter, parameter.high + (is_whole(parameter.kind) ? 1 : 0));
}

std::string number_text(const Parameter& parameter, double value) {
  if (is_whole(parameter.kind)) return fmt::format("{}", static_cast<std::int64_t>(value));
  return fmt::format("{:.6g}", value);
}

}  // namespace

Parameter parse_parameter(std::string_view text) {
  Parameter parameter;
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || trimmed(text.substr(0, equals)).empty()) {
    refuse(text, "does not say which key", "write SECTION.KEY=RANGE, e.g. optim.learning_rate=log(1e-5,1e-2)");
  }
  parameter.key = trimmed(text.substr(0, equals));
  std::string_view range = trimmed(text.substr(equals + 1));
  constexpr std::string_view kIf = ") if ";
  if (const std::size_t at = range.rfind(kIf); at != std::string_view::npos) {
    const std::string_view condition = trimmed(range.substr(at + kIf.size()));
    const std::size_t split_at = condition.find('=');
    if (split_at == std::string_view::npos || split_at == 0 || split_at + 1 == condition.size()) {
      refuse(text, fmt::format("has the condition \"{}\"", condition), "write ... if SECTION.KEY=VALUE");
    }
    parameter.only_if = Assignment{.key = std::string(trimmed(condition.substr(0, split_at))),
                                   .value = std::string(trimmed(condition.substr(split_at + 1)))};
    range = range.substr(0, at + 1);
  }
  const Call call = parse_call(text, range);
  const auto known = std::ranges::find(kKinds, call.name, &KindName::name);
  if (known == std::end(kKinds)) {
    std::vector<std::string> names;
    for (const KindName& name : kKinds) names.emplace_back(name.name);
    refuse(text, fmt::format("has the range \"{}\", which is unknown{}", call.name, did_you_mean(call.name, names)),
           forms());
  }
  parameter.kind = known->kind;
  if (parameter.is_number()) {
    read_range(text, call.arguments, parameter);
  } else {
    read_choices(text, call.arguments, parameter);
  }
  return parameter;
}

std::string to_text(const Parameter& parameter) {
  std::string arguments;
  if (parameter.is_number()) {
    arguments = fmt::format("{},{}", parameter.low, parameter.high);
    if (parameter.points) arguments += fmt::format(",{}", *parameter.points);
  } else {
    arguments = fmt::format("{}", fmt::join(parameter.choices, "|"));
  }
  return fmt::format(
      "{}={}({}){}", parameter.key, name_of(parameter.kind).name, arguments,
      parameter.only_if ? fmt::format(" if {}={}", parameter.only_if->key, parameter.only_if->value) : std::string());
}

std::string value_at(const Parameter& parameter, double unit) {
  unit = std::clamp(unit, 0.0, std::nextafter(1.0, 0.0));
  if (!parameter.is_number()) {
    const auto count = static_cast<double>(parameter.choices.size());
    return parameter.choices[static_cast<std::size_t>(unit * count)];
  }
  const double low = scaled(parameter, parameter.low), high = scaled_high(parameter);
  const double at = low + unit * (high - low);
  return value_near(parameter, is_log(parameter.kind) ? std::exp(at) : at);
}

std::string value_near(const Parameter& parameter, double number) {
  // A logarithm and back may come out just below a whole number: 1e-9 is far below what separates two of them.
  const double value = is_whole(parameter.kind) ? std::floor(number * (1 + 1e-12) + 1e-9) : number;
  return number_text(parameter, std::clamp(value, parameter.low, parameter.high));
}

double unit_of(const Parameter& parameter, std::string_view value) {
  if (!parameter.is_number()) {
    const auto found = std::ranges::find(parameter.choices, value);
    TRIREME_CHECK(found != parameter.choices.end(), "{} has no choice {}", parameter.key, value);
    return (static_cast<double>(found - parameter.choices.begin()) + 0.5) /
           static_cast<double>(parameter.choices.size());
  }
  const auto number = parsed_number(value);
  TRIREME_CHECK(number, "{} has the value {}, which is not a number", parameter.key, value);
  const double low = scaled(parameter, parameter.low), high = scaled_high(parameter);
  const double middle = is_whole(parameter.kind) ? (scaled(parameter, *number) + scaled(parameter, *number + 1)) / 2
                                                 : scaled(parameter, *number);
  return std::clamp((middle - low) / (high - low), 0.0, std::nextafter(1.0, 0.0));
}

std::vector<std::string> grid_values(const Parameter& parameter) {
  if (!parameter.is_number()) return parameter.choices;
  std::vector<std::string> values;
  if (!parameter.points && is_whole(parameter.kind)) {
    for (double value = parameter.low; value <= parameter.high; ++value)
      values.push_back(number_text(parameter, value));
    return values;
  }
  if (!parameter.points) {
    throw ConfigError(fmt::format("the range of {} has no end of values, and a grid needs a few", parameter.key),
                      fmt::format("say how many: {}={}({},{},4)", parameter.key, name_of(parameter.kind).name,
                                  parameter.low, parameter.high));
  }
  const double low = scaled(parameter, parameter.low), high = scaled(parameter, parameter.high);
  for (int i = 0; i < *parameter.points; ++i) {
    const double at = low + (high - low) * i / (*parameter.points - 1);
    const double number = is_log(parameter.kind) ? std::exp(at) : at;
    std::string value = value_near(parameter, is_whole(parameter.kind) ? std::round(number) : number);
    if (values.empty() || values.back() != value) values.push_back(std::move(value));
  }
  return values;
}

Space parse_space(std::span<const std::string> texts) {
  Space space;
  for (const std::string& text : texts) {
    Parameter parameter = parse_parameter(text);
    const auto same = [](const std::string& key) {
      return [&key](const Parameter& other) { return other.key == key; };
    };
    if (std::ranges::any_of(space.parameters, same(parameter.key))) {
      refuse(text, "names a key that another parameter varies", "leave one of them out");
    }
    if (parameter.only_if) {
      const auto other = std::ranges::find_if(space.parameters, same(parameter.only_if->key));
      if (other == space.parameters.end()) {
        refuse(text, fmt::format("depends on {}, which no parameter before it varies", parameter.only_if->key),
               fmt::format("give --param '{}=choice(...)' before it", parameter.only_if->key));
      }
      if (!other->is_number() && std::ranges::find(other->choices, parameter.only_if->value) == other->choices.end()) {
        refuse(text,
               fmt::format("depends on {} = \"{}\", which is none of its choices{}", other->key,
                           parameter.only_if->value, did_you_mean(parameter.only_if->value, other->choices)),
               fmt::format("one of {}", fmt::join(other->choices, ", ")));
      }
    }
    space.parameters.push_back(std::move(parameter));
  }
  return space;
}

Setting applicable(const Space& space, const Setting& setting) {
  Setting kept;
  for (const Parameter& parameter : space.parameters) {
    const auto value = std::ranges::find(setting, parameter.key, &Assignment::key);
    if (value == setting.end()) continue;
    if (parameter.only_if && std::ranges::find(kept, *parameter.only_if) == kept.end()) continue;
    kept.push_back(*value);
  }
  return kept;
}

Setting setting_at(const Space& space, std::span<const double> units) {
  TRIREME_CHECK(units.size() == space.parameters.size(), "{} coordinates for {} parameters", units.size(),
                space.parameters.size());
  Setting all;
  for (std::size_t i = 0; i < units.size(); ++i) {
    all.push_back({.key = space.parameters[i].key, .value = value_at(space.parameters[i], units[i])});
  }
  return applicable(space, all);
}

Setting random_setting(const Space& space, std::uint64_t seed, int trial, int draw) {
  const Random random(seed, fmt::format("sweep/trial {}/draw {}", trial, draw));
  std::vector<double> units(space.parameters.size());
  random.fill_uniform(0, units);
  return setting_at(space, units);
}

std::string to_text(const Setting& setting) {
  std::vector<std::string> words;
  for (const Assignment& assignment : setting) words.push_back(assignment.key + "=" + assignment.value);
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace trireme::experiment
