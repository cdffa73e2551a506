// plan/scaling.h -- how large a model and how much text a budget of compute should buy, and what loss to expect.
//
// Kaplan et al. 2020 (2001.08361): power laws of parameters without embeddings, tokens and compute. Hoffmann et al.
// 2022 (2203.15556): a parametric loss whose minimum under C = 6 N D is closed. McCandlish et al. 2018 (1812.06162):
// what a larger batch saves in steps and costs in examples.
// Depends on: base.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::plan {

inline constexpr double kPetaflopDay = 1e15 * 86400;

/// What a budget buys.
struct ComputeOptimal {
  double parameters = 0, tokens = 0, loss = 0;  ///< nats for each token
};

/// L = E + A / N^alpha + B / D^beta.
struct LossLaw {
  std::string name, source;
  double floor = 0, a = 0, b = 0, alpha = 0, beta = 0;
  double loss(double parameters, double tokens) const;
  /// The best N and D with 6 N D = flops.
  ComputeOptimal best(double flops) const;
  /// The same with the size of the model given.
  ComputeOptimal with_parameters(double flops, double parameters) const;
};
/// Hoffmann's own fit, and the one that Besiroglu et al. 2024 (2404.10102) made of the same data.
std::span<const LossLaw> loss_laws();
/// A law that `trireme science fit --law` wrote. IoError or ConfigError that names the file and what is wrong with it.
LossLaw read_loss_law(const std::filesystem::path& path);

namespace kaplan {
double loss_of_parameters(double parameters);  ///< with tokens and time without end
double loss_of_tokens(double tokens);          ///< with a model large enough
double loss_of_compute(double min_flops);      ///< of C_min: with the best size, far below the critical batch
double loss(double parameters, double tokens);
/// What a budget buys at a batch. C_min is the compute that the same loss takes at a batch far below the critical one;
/// a run at batch B spends C = C_min (1 + B / B_crit) for it (equation 5.5), and the fits are of C_min. At the critical
/// batch half of the budget is spent on speed. Tokens are those processed: 6 N D is the budget.
struct Budget {
  double parameters = 0, tokens = 0, batch_tokens = 0, steps = 0, loss = 0;
  double min_flops = 0;  ///< C_min
};
/// `batch_tokens` unset: the critical batch, at which the paper gives D(C_min) = 2 C_min / 6 N.
Budget best(double flops, std::optional<double> batch_tokens = {});
/// Tokens of the batch at which half of the steps and half of the tokens are spent for speed.
double critical_batch(double loss);
}  // namespace kaplan

/// One point of the trade-off: (S/S_min - 1)(E/E_min - 1) = 1.
struct BatchPoint {
  double batch = 0;
  double steps = 0;     ///< times the least number of steps
  double examples = 0;  ///< times the least number of examples
};
BatchPoint batch_point(double batch, double critical);
/// From a sixteenth of the critical batch to sixteen times as much.
std::vector<BatchPoint> batch_curve(double critical);

/// Little 1961: what is under way is rate times latency.
inline double in_flight(double rate, double latency_seconds) { return rate * latency_seconds; }

}  // namespace trireme::plan
