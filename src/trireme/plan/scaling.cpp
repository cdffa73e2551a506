#include "trireme/plan/scaling.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/mapped_file.h"

namespace trireme::plan {
namespace {

const std::array kLaws{
    LossLaw{.name = "Chinchilla",
            .source = "Hoffmann et al. 2022, approach 3",
            .floor = 1.69,
            .a = 406.4,
            .b = 410.7,
            .alpha = 0.34,
            .beta = 0.28},
    LossLaw{.name = "Chinchilla, fitted again",
            .source = "Besiroglu et al. 2024",
            .floor = 1.82,
            .a = 482.0,
            .b = 2085.0,
            .alpha = 0.348,
            .beta = 0.366},
};

}  // namespace

double LossLaw::loss(double parameters, double tokens) const {
  return floor + a / std::pow(parameters, alpha) + b / std::pow(tokens, beta);
}

ComputeOptimal LossLaw::best(double flops) const {
  const double g = std::pow(alpha * a / (beta * b), 1 / (alpha + beta));
  return with_parameters(flops, g * std::pow(flops / 6, beta / (alpha + beta)));
}

ComputeOptimal LossLaw::with_parameters(double flops, double parameters) const {
  const double tokens = flops / (6 * parameters);
  return {parameters, tokens, loss(parameters, tokens)};
}

std::span<const LossLaw> loss_laws() { return kLaws; }

LossLaw read_loss_law(const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& what) {
    return ConfigError(fmt::format("{}: {}", path.string(), what),
                       "write one with `trireme science fit RUNS --law FILE`");
  };
  const nlohmann::json json = nlohmann::json::parse(read_text_file(path, 1 << 20), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw refuse("no JSON object");
  LossLaw law;
  const auto text = [&](const char* name) {
    if (!json.contains(name) || !json[name].is_string()) throw refuse(fmt::format("no text \"{}\"", name));
    return json[name].get<std::string>();
  };
  const auto number = [&](const char* name) {
    const double value = json.contains(name) && json[name].is_number() ? json[name].get<double>() : 0;
    if (!(value > 0 && std::isfinite(value)))
      throw refuse(fmt::format("\"{}\" is missing or not a number above 0", name));
    return value;
  };
  law.name = text("name");
  law.source = text("source");
  law.floor = number("floor");
  law.a = number("a");
  law.b = number("b");
  law.alpha = number("alpha");
  law.beta = number("beta");
  return law;
}

namespace kaplan {

double loss_of_parameters(double parameters) { return std::pow(8.8e13 / parameters, 0.076); }
double loss_of_tokens(double tokens) { return std::pow(5.4e13 / tokens, 0.095); }
double loss_of_compute(double min_flops) { return std::pow(3.1e8 / (min_flops / kPetaflopDay), 0.050); }

double loss(double parameters, double tokens) {
  constexpr double kN = 0.076, kD = 0.103;
  return std::pow(std::pow(6.4e13 / parameters, kN / kD) + 1.8e13 / tokens, kD);
}

Budget best(double flops, std::optional<double> batch_tokens) {
  // C = C_min (1 + B / B_crit(C_min)) grows with C_min, so C_min is found by halving its interval; 200 halvings end at
  // neighbouring doubles.
  double low = 0, high = flops;
  for (int i = 0; batch_tokens && i < 200; ++i) {
    const double middle = (low + high) / 2;
    const double spent = middle * (1 + *batch_tokens / critical_batch(loss_of_compute(middle)));
    (spent > flops ? high : low) = middle;
  }
  const double min_flops = batch_tokens ? low : flops / 2;
  Budget budget{.parameters = 1.3e9 * std::pow(min_flops / kPetaflopDay, 0.73),
                .loss = loss_of_compute(min_flops),
                .min_flops = min_flops};
  budget.tokens = flops / (6 * budget.parameters);
  budget.batch_tokens = batch_tokens.value_or(critical_batch(budget.loss));
  budget.steps = budget.tokens / budget.batch_tokens;
  return budget;
}

double critical_batch(double loss) { return 2e8 / std::pow(loss, 1 / 0.21); }

}  // namespace kaplan

BatchPoint batch_point(double batch, double critical) {
  return {.batch = batch, .steps = 1 + critical / batch, .examples = 1 + batch / critical};
}

std::vector<BatchPoint> batch_curve(double critical) {
  std::vector<BatchPoint> curve;
  for (int power = -4; power <= 4; ++power) curve.push_back(batch_point(std::ldexp(critical, power), critical));
  return curve;
}

}  // namespace trireme::plan
