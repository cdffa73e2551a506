// science/scaling_fit.h -- scaling laws fitted to runs: the three approaches of Hoffmann et al. 2022 (2203.15556) and
// the forms of Kaplan et al. 2020 (2001.08361).
//
// A run is a point (N parameters, D tokens, final loss) and a curve of its loss while it trained. Losses are nats a
// token; compute is C = 6 N D. All fits are pure functions of the runs, in the order in which they are given.
// Depends on: minimize, base (random).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::science {

struct CurvePoint {
  double tokens = 0, loss = 0;
};

/// A run that has ended. Parameters are counted as the law counts them: Chinchilla with embeddings, Kaplan without.
struct ScalingRun {
  std::string name;
  double parameters = 0, tokens = 0, loss = 0;
  std::vector<CurvePoint> curve;  ///< smoothed; by tokens, ascending
  double flops() const { return 6 * parameters * tokens; }
};

/// y = factor x^exponent.
struct PowerLaw {
  double factor = 0, exponent = 0;
  double at(double x) const;
};
/// Least squares in logarithms; at least two different x.
PowerLaw fit_power_law(const std::vector<double>& x, const std::vector<double>& y);

/// L = E + A / N^alpha + B / D^beta.
struct ParametricLaw {
  double floor = 0, a = 0, b = 0, alpha = 0, beta = 0;
  double loss(double parameters, double tokens) const;
  /// N that minimises it under 6 N D = flops: G (C / 6)^(beta / (alpha + beta)).
  double best_parameters(double flops) const;
};

/// Approach 3: minimises Huber's loss (delta 1e-3) of log L, by L-BFGS from the best of a grid of starts.
struct ParametricFit {
  ParametricLaw law;
  double objective = 0;
  double largest_residual = 0;  ///< of log L
};
ParametricFit fit_parametric(const std::vector<ScalingRun>& runs);
/// From one start: for samples of a bootstrap, which begin at the fit of all runs.
ParametricFit fit_parametric_from(const std::vector<ScalingRun>& runs, const ParametricLaw& start);

/// The minimum of one budget's parabola.
struct IsoFlop {
  double flops = 0, best_parameters = 0, best_loss = 0;
  double curvature = 0, centre = 0;  ///< loss = best_loss + curvature (log N - centre)^2
  std::vector<std::size_t> runs;
};
/// Approach 2: loss over log N is a parabola at each budget; the minima give N_opt = factor C^exponent.
struct IsoFlopFit {
  std::vector<IsoFlop> budgets;
  std::vector<std::string> left_out;   ///< budgets without a minimum between their sizes, and why
  std::optional<PowerLaw> parameters;  ///< of compute; none with fewer than two minima
};
/// Runs whose compute differs by less than `tolerance` of it share a budget.
IsoFlopFit fit_iso_flop(const std::vector<ScalingRun>& runs, double tolerance = 0.1);

/// Approach 1: of all curves the lowest at each compute; whose N it is gives N_opt = factor C^exponent.
struct EnvelopePoint {
  double flops = 0, parameters = 0, loss = 0;
};
struct EnvelopeFit {
  std::vector<EnvelopePoint> envelope;
  std::optional<PowerLaw> parameters;  ///< none where one size is the lowest everywhere
};
EnvelopeFit fit_envelope(const std::vector<ScalingRun>& runs, int points = 1500);

/// L = ((N_c / N)^(alpha_n / alpha_d) + D_c / D)^alpha_d, and its two limits.
struct KaplanLaw {
  double log_nc = 0, log_dc = 0;  ///< natural logarithms: N_c is often beyond 1e13
  double alpha_n = 0, alpha_d = 0;
  double loss(double parameters, double tokens) const;
};
struct KaplanFit {
  KaplanLaw law;
  double objective = 0, largest_residual = 0;
};
KaplanFit fit_kaplan(const std::vector<ScalingRun>& runs);

/// The middle 95 % of fits to samples of the runs, drawn with replacement.
struct Interval {
  double low = 0, high = 0;
};
struct ParametricIntervals {
  int samples = 0;                              ///< that could be fitted
  Interval floor, a, b, alpha, beta, exponent;  ///< exponent: beta / (alpha + beta), of N_opt over C
};
ParametricIntervals bootstrap_parametric(const std::vector<ScalingRun>& runs, const ParametricLaw& fitted, int samples,
                                         std::uint64_t seed);

}  // namespace trireme::science
