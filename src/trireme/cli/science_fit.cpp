#include "trireme/cli/science_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/observe/report/chart.h"
#include "trireme/observe/run_reader.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {
namespace {

using science::ScalingRun;

/// The part of a run at its end whose mean is the final loss, and the width of smoothing.
constexpr double kFinalShare = 0.05;

ScalingRun scaling_run(const std::string& folder, bool without_embeddings) {
  const observe::RunFiles files = observe::read_run(folder);
  if (files.steps.empty())
    throw ConfigError(fmt::format("{} has no step in metrics.jsonl", folder), "leave this run out, or train it");
  const auto shape =
      spec::shape_of(spec::load_recipe({.file = folder + "/recipe.toml", .text = files.recipe}).value.model);
  if (!shape) throw ConfigError(fmt::format("the recipe of {} has no model", folder), "leave this run out");
  const spec::ParameterCount count = spec::count_parameters(*shape);
  ScalingRun run{.name = folder,
                 .parameters = static_cast<double>(count.active() - (without_embeddings ? count.embedding : 0)),
                 .tokens = static_cast<double>(files.steps.back().tokens)};
  observe::Curve curve;
  for (const observe::StepRecord& step : files.steps) curve.push_back({static_cast<double>(step.tokens), step.loss});
  for (const observe::Point& point : observe::smoothed(curve, kFinalShare / 2 * run.tokens)) {
    if (std::isfinite(point.y)) run.curve.push_back({point.x, point.y});
  }
  double sum = 0;
  int last = 0;
  for (const observe::Point& point : curve) {
    if (point.x <= (1 - kFinalShare) * run.tokens) continue;
    sum += point.y;  // NaN in the end is refused by the fit, with the run's name
    ++last;
  }
  run.loss = sum / last;
  return run;
}

observe::Series dots(std::string name, int color, observe::Curve points) {
  return {.name = std::move(name), .color = color, .look = observe::Series::Look::kDots, .points = std::move(points)};
}

std::string coefficient(double value, const science::Interval& interval) {
  return fmt::format("{:.4g} [{:.4g}, {:.4g}]", value, interval.low, interval.high);
}

}  // namespace

FittedFamily fit_family(const FamilyFolders& folders) {
  FittedFamily family;
  for (const std::string& folder : folders.runs) family.runs.push_back(scaling_run(folder, folders.without_embeddings));
  for (const std::string& folder : folders.held_out)
    family.held_out.push_back(scaling_run(folder, folders.without_embeddings));
  family.fit = science::fit_parametric(family.runs);
  family.intervals = science::bootstrap_parametric(family.runs, family.fit.law, folders.bootstrap, /*seed=*/0);
  family.iso_flop = science::fit_iso_flop(family.runs);
  family.envelope = science::fit_envelope(family.runs);
  family.kaplan = science::fit_kaplan(family.runs);
  return family;
}

std::optional<science::PowerLaw> compute_form(const FittedFamily& family) {
  std::vector<double> flops, losses;
  for (const science::EnvelopePoint& point : family.envelope.envelope) {
    flops.push_back(point.flops);
    losses.push_back(point.loss);
  }
  if (flops.size() < 2 || flops.front() == flops.back()) return std::nullopt;
  return science::fit_power_law(flops, losses);
}

std::string family_table(const FittedFamily& family) {
  TextTable points({{"run"},
                    {"parameters", TextTable::Align::kRight},
                    {"tokens", TextTable::Align::kRight},
                    {"loss", TextTable::Align::kRight},
                    {"law", TextTable::Align::kRight},
                    {"difference", TextTable::Align::kRight}});
  const auto add = [&](const ScalingRun& run, const char* what) {
    const double predicted = family.fit.law.loss(run.parameters, run.tokens);
    points.add({run.name + what, short_count(run.parameters), short_count(run.tokens), fmt::format("{:.4f}", run.loss),
                fmt::format("{:.4f}", predicted), fmt::format("{:+.2f} %", 100 * (predicted / run.loss - 1))});
  };
  for (const ScalingRun& run : family.runs) add(run, "");
  for (const ScalingRun& run : family.held_out) add(run, " (held out)");
  return points.text();
}

std::string family_text(const FittedFamily& family) {
  const auto& [runs, held_out, fit, intervals, iso_flop, envelope, kaplan] = family;
  std::string text = fmt::format(
      "Chinchilla, approach 3: L = E + A / N^alpha + B / D^beta\n"
      "  E {}   A {}   B {}\n  alpha {}   beta {}\n  in brackets the middle 95 % of {} fits to runs drawn again\n",
      coefficient(fit.law.floor, intervals.floor), coefficient(fit.law.a, intervals.a),
      coefficient(fit.law.b, intervals.b), coefficient(fit.law.alpha, intervals.alpha),
      coefficient(fit.law.beta, intervals.beta), intervals.samples);
  const auto to = std::back_inserter(text);
  fmt::format_to(to, "The best size grows with compute to the power of\n  {} by approach 3\n",
                 coefficient(family.exponent(), intervals.exponent));
  if (iso_flop.parameters)
    fmt::format_to(to, "  {:.4g} by approach 2, the minima of {} parabolas\n", iso_flop.parameters->exponent,
                   iso_flop.budgets.size());
  for (const std::string& left_out : iso_flop.left_out) fmt::format_to(to, "  approach 2 leaves out {}\n", left_out);
  if (envelope.parameters)
    fmt::format_to(to, "  {:.4g} by approach 1, the lowest curves\n", envelope.parameters->exponent);
  fmt::format_to(to,
                 "Kaplan: L = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D\n  alpha_N {:.4g}   alpha_D {:.4g}   "
                 "N_c {:.3g}   D_c {:.3g}   largest residual {:.2f} %\n",
                 kaplan.law.alpha_n, kaplan.law.alpha_d, std::exp(kaplan.law.log_nc), std::exp(kaplan.law.log_dc),
                 100 * std::expm1(kaplan.largest_residual));
  if (const auto compute = compute_form(family))
    fmt::format_to(to, "  of the lowest curves alone: L = (C_c / C)^alpha_C   alpha_C {:.4g}   C_c {:.3g} FLOPs\n",
                   -compute->exponent, std::pow(compute->factor, -1 / compute->exponent));
  return text;
}

std::string family_charts(const FittedFamily& family) {
  const auto& [runs, held_out, fit, intervals, iso_flop, envelope, kaplan] = family;
  observe::Chart curves{.title = "Loss over log10 of compute (6 N D)",
                        .unit = "nats a token",
                        .wide = true,
                        .legend = false,
                        .series = {},
                        .x_name = "log10 of compute"};
  double low = 1e300, high = 0;
  int color = 0;
  for (const ScalingRun& run : runs) {
    observe::Curve points;
    for (const science::CurvePoint& point : run.curve) {
      const double x = std::log10(6 * run.parameters * point.tokens);
      points.push_back({x, point.loss});
      low = std::min(low, x);
      high = std::max(high, x);
    }
    curves.series.push_back({.name = run.name, .color = color++, .points = std::move(points)});
  }
  curves.x_low = low;
  curves.x_high = high;
  observe::Chart parabolas{.title = "Loss at equal compute over log10 of parameters",
                           .unit = "nats a token",
                           .wide = true,
                           .series = {},
                           .x_name = "log10 of parameters"};
  observe::Chart sizes{.title = "log10 of the best number of parameters over log10 of compute",
                       .wide = true,
                       .series = {},
                       .x_name = "log10 of compute"};
  parabolas.x_low = 1e300;
  parabolas.x_high = 0;
  color = 0;
  observe::Curve minima;
  for (const science::IsoFlop& budget : iso_flop.budgets) {
    observe::Curve points;
    for (const std::size_t index : budget.runs)
      points.push_back({std::log10(runs[index].parameters), runs[index].loss});
    std::sort(points.begin(), points.end(), [](const auto& one, const auto& other) { return one.x < other.x; });
    parabolas.x_low = std::min(parabolas.x_low, points.front().x);
    parabolas.x_high = std::max(parabolas.x_high, points.back().x);
    parabolas.series.push_back(dots(fmt::format("{:.2g} FLOPs", budget.flops), color++, std::move(points)));
    minima.push_back({std::log10(budget.flops), std::log10(budget.best_parameters)});
  }
  observe::Curve law, lowest;
  for (const science::EnvelopePoint& point : envelope.envelope)
    lowest.push_back({std::log10(point.flops), std::log10(point.parameters)});
  for (int i = 0; i <= 50; ++i) {
    const double x = low + (high - low) * i / 50;
    law.push_back({x, std::log10(fit.law.best_parameters(std::pow(10, x)))});
  }
  sizes.x_low = low;
  sizes.x_high = high;
  sizes.series = {{.name = "parametric law", .color = 0, .points = std::move(law)},
                  {.name = "size of the lowest curve",
                   .color = 2,
                   .look = observe::Series::Look::kFaint,
                   .points = std::move(lowest)},
                  dots("minima of parabolas", 1, std::move(minima))};
  std::string body = observe::to_html(std::move(curves));
  if (!parabolas.series.empty()) body += observe::to_html(std::move(parabolas));
  return body + observe::to_html(std::move(sizes));
}

}  // namespace trireme::cli
