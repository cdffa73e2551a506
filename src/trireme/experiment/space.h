// experiment/space.h -- the hyperparameters that a sweep varies, and the values they may have.
//
//   optim.learning_rate=log(1e-5,1e-2)             log-uniform
//   optim.weight_decay=uniform(0,0.2,5)            uniform; five values in a grid
//   model.num_layers=int(2,8)                      whole numbers, both ends included; logint: log-uniform
//   lr_schedule.kind=choice(cosine,linear)         one of the values; separated by | where they contain commas
//   optim.beta2=choice(0.95,0.99) if optim.kind=adamw      only where another parameter has this value
//
// Searches draw in the unit cube: a parameter maps [0, 1) to its values, and back. Values are texts, as --set takes
// them; numbers have six digits, so that what is printed is what was trained.
// Depends on: base.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::experiment {

struct Assignment {
  std::string key, value;
  bool operator==(const Assignment&) const = default;
};
/// What one trial sets, in the order of the parameters; those that do not apply are left out.
using Setting = std::vector<Assignment>;

struct Parameter {
  enum class Kind : std::uint8_t { kUniform, kLog, kInt, kLogInt, kChoice };
  std::string key;
  Kind kind = Kind::kUniform;
  double low = 0, high = 1;          ///< numbers: both ends included
  std::optional<int> points;         ///< values in a grid; unset: whole numbers all of them, others none
  std::vector<std::string> choices;  ///< kChoice
  std::optional<Assignment> only_if;
  bool operator==(const Parameter&) const = default;

  bool is_number() const { return kind != Kind::kChoice; }
};

/// ConfigError that names the text, what is wrong with it and a form that works.
Parameter parse_parameter(std::string_view text);
/// What parse_parameter reads back as the same.
std::string to_text(const Parameter& parameter);

/// The value at `unit`, in [0, 1).
std::string value_at(const Parameter& parameter, double unit);
/// A number's nearest value within the range.
std::string value_near(const Parameter& parameter, double number);
/// Where in [0, 1) a value lies: value_at(unit_of(value)) == value.
double unit_of(const Parameter& parameter, std::string_view value);
/// Evenly spaced on the parameter's scale, both ends included. ConfigError where a range has no `points`.
std::vector<std::string> grid_values(const Parameter& parameter);

struct Space {
  std::vector<Parameter> parameters;
  bool operator==(const Space&) const = default;
};

/// ConfigError when a key comes twice, or a condition names no earlier parameter or none of its values.
Space parse_space(std::span<const std::string> texts);
/// The setting at a point of the unit cube, a coordinate for each parameter.
Setting setting_at(const Space& space, std::span<const double> units);
/// Drops what does not apply to the values before it.
Setting applicable(const Space& space, const Setting& setting);
/// A uniform point of the unit cube: a function of its arguments alone. `draw` counts replacements of invalid trials.
Setting random_setting(const Space& space, std::uint64_t seed, int trial, int draw = 0);
/// "optim.learning_rate=0.001 model.num_layers=4".
std::string to_text(const Setting& setting);

}  // namespace trireme::experiment
