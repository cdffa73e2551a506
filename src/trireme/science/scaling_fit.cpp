// Approach 3 and Kaplan's joint form: robust regressions of log L.
#include "trireme/science/scaling_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/science/minimize.h"

namespace trireme::science {
namespace {

constexpr double kHuberDelta = 1e-3;
constexpr std::size_t kStartsTried = 24;

constexpr MinimizeOptions kToTheEnd{.iterations = 1000, .tolerance = 1e-11};

struct HuberTerm {
  double value, slope;
};
HuberTerm huber(double residual) {
  const double size = std::abs(residual);
  if (size <= kHuberDelta) return {residual * residual / 2, residual};
  return {kHuberDelta * (size - kHuberDelta / 2), residual > 0 ? kHuberDelta : -kHuberDelta};
}

struct LogPoint {
  double n, d, loss;  // natural logarithms
};

void require_runs(const std::vector<ScalingRun>& runs, std::size_t coefficients) {
  for (const ScalingRun& run : runs) {
    if (!(run.parameters > 0 && run.tokens > 0 && run.loss > 0 && std::isfinite(run.loss))) {
      throw ConfigError(fmt::format("run {}: {} parameters, {} tokens and a loss of {} are no point of a scaling law",
                                    run.name, run.parameters, run.tokens, run.loss),
                        "leave this run out");
    }
  }
  if (runs.size() <= coefficients) {
    throw ConfigError(fmt::format("{} runs cannot determine {} coefficients", runs.size(), coefficients),
                      fmt::format("give at least {} runs, of several sizes and budgets", coefficients + 1));
  }
  const auto varies = [&](double ScalingRun::*member) {
    return std::any_of(runs.begin(), runs.end(), [&](const ScalingRun& run) { return run.*member != runs[0].*member; });
  };
  if (!varies(&ScalingRun::parameters))
    throw ConfigError(fmt::format("all {} runs have the same number of parameters", runs.size()),
                      "give runs of at least two sizes");
  if (!varies(&ScalingRun::tokens))
    throw ConfigError(fmt::format("all {} runs saw the same number of tokens", runs.size()),
                      "give runs of at least two lengths");
}

std::vector<LogPoint> log_points(const std::vector<ScalingRun>& runs) {
  std::vector<LogPoint> points;
  points.reserve(runs.size());
  for (const ScalingRun& run : runs) {
    points.push_back({std::log(run.parameters), std::log(run.tokens), std::log(run.loss)});
  }
  return points;
}

/// Subtracts the means of log N and log D, and gives them. About the means A and alpha, and B and beta, are nearly
/// independent of each other: the minimum takes tens of steps instead of thousands.
LogPoint centre_points(std::vector<LogPoint>& points) {
  LogPoint mean{0, 0, 0};
  for (const LogPoint& point : points) {
    mean.n += point.n / static_cast<double>(points.size());
    mean.d += point.d / static_cast<double>(points.size());
  }
  for (LogPoint& point : points) {
    point.n -= mean.n;
    point.d -= mean.d;
  }
  return mean;
}

/// log(sum of exponentials) and the share of each.
template <std::size_t kTerms>
double log_sum_exp(const std::array<double, kTerms>& terms, std::array<double, kTerms>& shares) {
  const double top = *std::max_element(terms.begin(), terms.end());
  double sum = 0;
  for (std::size_t i = 0; i < kTerms; ++i) sum += shares[i] = std::exp(terms[i] - top);
  for (double& share : shares) share /= sum;
  return top + std::log(sum);
}

/// x = (log A - alpha mean n, log B - beta mean d, log E, alpha, beta); points are centred.
double parametric_objective(const std::vector<LogPoint>& points, std::span<const double> x,
                            std::span<double> gradient) {
  std::fill(gradient.begin(), gradient.end(), 0);
  double total = 0;
  std::array<double, 3> shares;
  for (const LogPoint& point : points) {
    const double predicted = log_sum_exp<3>({x[0] - x[3] * point.n, x[1] - x[4] * point.d, x[2]}, shares);
    const HuberTerm term = huber(predicted - point.loss);
    total += term.value;
    for (std::size_t i = 0; i < 3; ++i) gradient[i] += term.slope * shares[i];
    gradient[3] -= term.slope * shares[0] * point.n;
    gradient[4] -= term.slope * shares[1] * point.d;
  }
  return total;
}

/// x = (log N_c, log D_c, log alpha_n, log alpha_d): exponents stay positive.
double kaplan_objective(const std::vector<LogPoint>& points, std::span<const double> x, std::span<double> gradient) {
  std::fill(gradient.begin(), gradient.end(), 0);
  const double alpha_n = std::exp(x[2]), alpha_d = std::exp(x[3]);
  double total = 0;
  std::array<double, 2> shares;
  for (const LogPoint& point : points) {
    const double of_size = alpha_n / alpha_d * (x[0] - point.n);
    const double sum = log_sum_exp<2>({of_size, x[1] - point.d}, shares);
    const HuberTerm term = huber(alpha_d * sum - point.loss);
    total += term.value;
    gradient[0] += term.slope * shares[0] * alpha_n;
    gradient[1] += term.slope * shares[1] * alpha_d;
    gradient[2] += term.slope * alpha_d * shares[0] * of_size;
    gradient[3] += term.slope * alpha_d * (sum - shares[0] * of_size);
  }
  return total;
}

/// Downhill from the best of `starts`, which is quicker than from all of them and ends at the same minimum unless the
/// lowest basin looks worse than 24 others from its grid point. Few steps from each; the lowest then goes on to its
/// end.
Minimum minimize_from(const SmoothFunction& function, std::vector<std::vector<double>> starts) {
  std::vector<std::pair<double, std::size_t>> order;
  std::vector<double> unused(starts.front().size());
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const double value = function(starts[i], unused);
    if (std::isfinite(value)) order.emplace_back(value, i);
  }
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), kStartsTried));
  Minimum best;
  for (const auto& [value, index] : order) {
    Minimum one = minimize(function, starts[index], {.iterations = 100, .tolerance = 1e-10});
    if (best.x.empty() || one.value < best.value) best = std::move(one);
  }
  return minimize(function, std::move(best.x), kToTheEnd);
}

template <typename Law>
double largest_log_residual(const std::vector<ScalingRun>& runs, const Law& law) {
  double largest = 0;
  for (const ScalingRun& run : runs) {
    largest = std::max(largest, std::abs(std::log(law.loss(run.parameters, run.tokens) / run.loss)));
  }
  return largest;
}

ParametricFit parametric_fit_of(const Minimum& minimum, const LogPoint& mean, const std::vector<ScalingRun>& runs) {
  ParametricFit fit{.law = {.floor = std::exp(minimum.x[2]),
                            .a = std::exp(minimum.x[0] + minimum.x[3] * mean.n),
                            .b = std::exp(minimum.x[1] + minimum.x[4] * mean.d),
                            .alpha = minimum.x[3],
                            .beta = minimum.x[4]},
                    .objective = minimum.value};
  fit.largest_residual = largest_log_residual(runs, fit.law);
  return fit;
}

}  // namespace

double ParametricLaw::loss(double parameters, double tokens) const {
  return floor + a / std::pow(parameters, alpha) + b / std::pow(tokens, beta);
}

double ParametricLaw::best_parameters(double flops) const {
  return std::pow(alpha * a / (beta * b), 1 / (alpha + beta)) * std::pow(flops / 6, beta / (alpha + beta));
}

double KaplanLaw::loss(double parameters, double tokens) const {
  std::array<double, 2> shares;
  return std::exp(
      alpha_d *
      log_sum_exp<2>({alpha_n / alpha_d * (log_nc - std::log(parameters)), log_dc - std::log(tokens)}, shares));
}

ParametricFit fit_parametric(const std::vector<ScalingRun>& runs) {
  require_runs(runs, 5);
  std::vector<LogPoint> points = log_points(runs);
  const LogPoint mean = centre_points(points);
  std::vector<std::vector<double>> starts;  // the grid of the paper's appendix
  for (double a = 0; a <= 25; a += 5)
    for (double b = 0; b <= 25; b += 5)
      for (double e = -1; e <= 1; e += 0.5)
        for (double alpha = 0; alpha <= 2; alpha += 0.5)
          for (double beta = 0; beta <= 2; beta += 0.5)
            starts.push_back({a - alpha * mean.n, b - beta * mean.d, e, alpha, beta});
  const auto objective = [&](auto x, auto gradient) { return parametric_objective(points, x, gradient); };
  return parametric_fit_of(minimize_from(objective, std::move(starts)), mean, runs);
}

ParametricFit fit_parametric_from(const std::vector<ScalingRun>& runs, const ParametricLaw& start) {
  require_runs(runs, 5);
  std::vector<LogPoint> points = log_points(runs);
  const LogPoint mean = centre_points(points);
  const auto objective = [&](auto x, auto gradient) { return parametric_objective(points, x, gradient); };
  std::vector<double> x = {std::log(start.a) - start.alpha * mean.n, std::log(start.b) - start.beta * mean.d,
                           std::log(start.floor), start.alpha, start.beta};
  return parametric_fit_of(minimize(objective, std::move(x), {.iterations = 200, .tolerance = 1e-9}), mean, runs);
}

KaplanFit fit_kaplan(const std::vector<ScalingRun>& runs) {
  require_runs(runs, 4);
  const std::vector<LogPoint> points = log_points(runs);
  std::vector<std::vector<double>> starts;
  for (double nc = 5; nc <= 40; nc += 5)
    for (double dc = 5; dc <= 40; dc += 5)
      for (const double alpha_n : {0.03, 0.08, 0.2, 0.5})
        for (const double alpha_d : {0.03, 0.1, 0.2, 0.5})
          starts.push_back({nc, dc, std::log(alpha_n), std::log(alpha_d)});
  const Minimum minimum =
      minimize_from([&](auto x, auto gradient) { return kaplan_objective(points, x, gradient); }, std::move(starts));
  KaplanFit fit{.law = {.log_nc = minimum.x[0],
                        .log_dc = minimum.x[1],
                        .alpha_n = std::exp(minimum.x[2]),
                        .alpha_d = std::exp(minimum.x[3])},
                .objective = minimum.value};
  fit.largest_residual = largest_log_residual(runs, fit.law);
  return fit;
}

ParametricIntervals bootstrap_parametric(const std::vector<ScalingRun>& runs, const ParametricLaw& fitted, int samples,
                                         std::uint64_t seed) {
  const Random random(seed, "science/bootstrap");
  std::array<std::vector<double>, 6> values;
  std::vector<ScalingRun> drawn;
  for (int sample = 0; sample < samples; ++sample) {
    drawn.clear();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      drawn.push_back(runs[random.below(runs.size(), static_cast<std::uint64_t>(sample) * runs.size() + i)]);
      drawn.back().curve.clear();
    }
    ParametricLaw law;
    try {
      law = fit_parametric_from(drawn, fitted).law;
    } catch (const ConfigError&) {  // one size or one length alone was drawn
      continue;
    }
    const std::array<double, 6> one = {law.floor, law.a, law.b, law.alpha, law.beta, law.beta / (law.alpha + law.beta)};
    for (std::size_t i = 0; i < one.size(); ++i) values[i].push_back(one[i]);
  }
  std::array<Interval, 6> intervals;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::vector<double>& sorted = values[i];
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty()) continue;
    const auto at = [&](double share) {
      return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
    };
    intervals[i] = {at(0.025), at(0.975)};
  }
  return {.samples = static_cast<int>(values[0].size()),
          .floor = intervals[0],
          .a = intervals[1],
          .b = intervals[2],
          .alpha = intervals[3],
          .beta = intervals[4],
          .exponent = intervals[5]};
}

}  // namespace trireme::science
