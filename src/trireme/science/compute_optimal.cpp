// Approaches 1 and 2: the best size at each compute, without a form for the loss.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/units.h"
#include "trireme/science/matrix.h"
#include "trireme/science/scaling_fit.h"

namespace trireme::science {
namespace {

/// y = p0 + p1 x + p2 x^2 by least squares; x is centred first, so that the system is well conditioned.
struct Parabola {
  double p0 = 0, p1 = 0, p2 = 0, mean = 0;
};
Parabola fit_parabola(const std::vector<double>& x, const std::vector<double>& y) {
  Parabola out;
  out.mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  Matrix normal(3, 3);
  std::vector<double> right(3);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double centred = x[i] - out.mean;
    const double powers[3] = {1, centred, centred * centred};
    for (std::size_t row = 0; row < 3; ++row) {
      right[row] += powers[row] * y[i];
      for (std::size_t column = 0; column < 3; ++column) normal(row, column) += powers[row] * powers[column];
    }
  }
  Cholesky(std::move(normal)).solve(right);
  out.p0 = right[0];
  out.p1 = right[1];
  out.p2 = right[2];
  return out;
}

/// Loss of a run at a compute, between its points by the logarithm of compute; nothing outside of its curve.
std::optional<double> curve_loss(const ScalingRun& run, double flops) {
  const double tokens = flops / (6 * run.parameters);
  const auto above = std::lower_bound(run.curve.begin(), run.curve.end(), tokens,
                                      [](const CurvePoint& point, double wanted) { return point.tokens < wanted; });
  if (above == run.curve.end()) return {};
  if (above->tokens == tokens) return above->loss;
  if (above == run.curve.begin()) return {};
  const CurvePoint& below = *(above - 1);
  const double share = std::log(tokens / below.tokens) / std::log(above->tokens / below.tokens);
  return below.loss + share * (above->loss - below.loss);
}

}  // namespace

double PowerLaw::at(double x) const { return factor * std::pow(x, exponent); }

PowerLaw fit_power_law(const std::vector<double>& x, const std::vector<double>& y) {
  double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
  const auto count = static_cast<double>(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    mean_x += std::log(x[i]) / count;
    mean_y += std::log(y[i]) / count;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double dx = std::log(x[i]) - mean_x;
    xx += dx * dx;
    xy += dx * (std::log(y[i]) - mean_y);
  }
  if (!(xx > 0)) throw ConfigError("a power law needs two different values of x", "give runs that differ in it");
  const double exponent = xy / xx;
  return {.factor = std::exp(mean_y - exponent * mean_x), .exponent = exponent};
}

IsoFlopFit fit_iso_flop(const std::vector<ScalingRun>& runs, double tolerance) {
  std::vector<std::size_t> order(runs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t i, std::size_t j) { return runs[i].flops() < runs[j].flops(); });
  IsoFlopFit fit;
  for (std::size_t begin = 0; begin < order.size();) {
    IsoFlop budget;
    std::size_t end = begin;
    while (end < order.size() && runs[order[end]].flops() <= runs[order[begin]].flops() * (1 + tolerance)) {
      budget.runs.push_back(order[end]);
      budget.flops += std::log(runs[order[end++]].flops());
    }
    budget.flops = std::exp(budget.flops / static_cast<double>(budget.runs.size()));
    begin = end;
    std::vector<double> x, y, sizes;
    for (const std::size_t run : budget.runs) {
      x.push_back(std::log(runs[run].parameters));
      y.push_back(runs[run].loss);
    }
    sizes = x;
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    const auto leave_out = [&](const std::string& why) {
      fit.left_out.push_back(fmt::format("{:.3g} FLOPs: {}", budget.flops, why));
    };
    if (sizes.size() < 3) {
      leave_out(fmt::format("{} sizes, a parabola needs 3", sizes.size()));
      continue;
    }
    const Parabola parabola = fit_parabola(x, y);
    const double centre = parabola.mean - parabola.p1 / (2 * parabola.p2);
    if (!(parabola.p2 > 0) || centre < sizes.front() || centre > sizes.back()) {
      const auto lowest = static_cast<std::size_t>(std::min_element(y.begin(), y.end()) - y.begin());
      leave_out(fmt::format("no minimum between its sizes; the lowest loss is that of {} parameters",
                            short_count(std::exp(x[lowest]))));
      continue;
    }
    budget.curvature = parabola.p2;
    budget.centre = centre;
    budget.best_parameters = std::exp(centre);
    budget.best_loss = parabola.p0 - parabola.p1 * parabola.p1 / (4 * parabola.p2);
    fit.budgets.push_back(std::move(budget));
  }
  if (fit.budgets.size() >= 2) {
    std::vector<double> flops, sizes;
    for (const IsoFlop& budget : fit.budgets) {
      flops.push_back(budget.flops);
      sizes.push_back(budget.best_parameters);
    }
    fit.parameters = fit_power_law(flops, sizes);
  }
  return fit;
}

EnvelopeFit fit_envelope(const std::vector<ScalingRun>& runs, int points) {
  double low = 0, high = 0;
  for (const ScalingRun& run : runs) {
    if (run.curve.size() < 2) continue;
    const double first = 6 * run.parameters * run.curve.front().tokens;
    low = low == 0 ? first : std::min(low, first);
    high = std::max(high, 6 * run.parameters * run.curve.back().tokens);
  }
  EnvelopeFit fit;
  if (!(low > 0 && high > low)) return fit;
  for (int i = 0; i < points; ++i) {
    const double flops = low * std::pow(high / low, static_cast<double>(i) / (points - 1));
    EnvelopePoint best{.flops = flops};
    for (const ScalingRun& run : runs) {
      const auto loss = curve_loss(run, flops);
      if (loss && (best.parameters == 0 || *loss < best.loss)) {
        best.parameters = run.parameters;
        best.loss = *loss;
      }
    }
    if (best.parameters > 0) fit.envelope.push_back(best);
  }
  // Where the smallest model is the lowest nothing smaller was tried, and where the largest is nothing larger was:
  // those stretches say nothing of the best size.
  double smallest = 0, largest = 0;
  for (const ScalingRun& run : runs) {
    smallest = smallest == 0 ? run.parameters : std::min(smallest, run.parameters);
    largest = std::max(largest, run.parameters);
  }
  std::vector<double> flops, sizes;
  for (const EnvelopePoint& point : fit.envelope) {
    if (point.parameters == smallest || point.parameters == largest) continue;
    flops.push_back(point.flops);
    sizes.push_back(point.parameters);
  }
  if (!sizes.empty() && *std::max_element(sizes.begin(), sizes.end()) > *std::min_element(sizes.begin(), sizes.end())) {
    fit.parameters = fit_power_law(flops, sizes);
  }
  return fit;
}

}  // namespace trireme::science
