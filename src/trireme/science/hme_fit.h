// science/hme_fit.h -- fitting a hierarchical mixture of experts: expectation maximisation, or one sample at a time.
//
// EM: the E-step computes the posteriors of every gate's branches; the M-step is then one weighted regression a gate
// and an expert, each independent of the others. IRLS takes a few steps of the gates' instead of all (generalised EM).
// No iteration makes the log-likelihood smaller: a regression never makes its own objective worse (regression.h), and a
// variance is the best one above its floor.
// Depends on: hme, regression.
#pragma once

#include <cstdint>

#include "trireme/science/hme.h"
#include "trireme/science/regression.h"

namespace trireme::science {

struct EmOptions {
  int iterations = 100;          ///< at most
  double tolerance = 1e-6;       ///< stop when the mean log-likelihood gains less in an iteration
  int irls_steps = 3;            ///< of gates and classifying experts, an iteration
  double variance_floor = 1e-6;  ///< of an expert's variance, relative to the target's own
  int restarts = 5;              ///< from other gates; the one with the best likelihood counts
  std::uint64_t seed = 1;
};

struct EmReport {
  std::vector<double> log_likelihoods;  ///< mean a sample, before each iteration and after the last one
  bool converged = false;
  RidgeUse ridge;
  int floored_variances = 0;  ///< of the fitted model
  int restart = 0;            ///< which one it was, from 0
};

/// Gates that cut the data at random places, and experts fitted to what the gates give them.
Hme random_start(const Columns& columns, const std::vector<int>& branching, const Samples& samples,
                 const EmOptions& options, int restart);
/// From `model` on.
EmReport run_em(Hme& model, const Samples& samples, const EmOptions& options);
/// The best of options.restarts random starts.
Hme fit_by_em(const Columns& columns, const std::vector<int>& branching, const Samples& samples,
              const EmOptions& options, EmReport* report = nullptr);

struct OnlineOptions {
  double forgetting = 0.99;  ///< lambda at the start: how much of what an expert saw it keeps when it sees a sample
  double annealing = 0.6;    ///< 1 - lambda shrinks by this every 1000 samples
  double prior = 1e-2;       ///< weight of the starting coefficients, in samples
  int epochs = 1;            ///< passes over the data; each in another order
  std::uint64_t seed = 1;
};

/// Recursive least squares for every expert and gate, one sample at a time. An expert's weight is its posterior h, and
/// it forgets by lambda^h: what an expert does not see makes it forget nothing. With lambda^1, as in the paper, the
/// inverse of an expert without samples grows without bound. Gates take the recursive form of the IRLS step; the
/// paper's regression of their logits on ln h has no bound where h goes to zero.
class OnlineHme {
 public:
  OnlineHme(Hme start, const OnlineOptions& options);
  const Hme& model() const { return model_; }
  /// Gives the log-likelihood of the sample before it was learned.
  double observe(std::span<const double> input, std::span<const double> target);
  std::int64_t seen() const { return seen_; }

 private:
  void learn_gate(std::size_t gate, std::span<const double> input, double keep_all);
  void learn_expert(std::size_t expert, std::span<const double> input, std::span<const double> target, double keep_all);

  Hme model_;
  OnlineOptions options_;
  Forward at_;
  std::vector<std::vector<RecursiveLeastSquares>> gate_rows_;    // [gate][branch but the last]
  std::vector<std::vector<RecursiveLeastSquares>> expert_rows_;  // [expert]: one for all outputs, or one a class
  std::vector<double> evidence_;                                 // [expert]: forgotten sum of posteriors
  std::vector<double> floors_;                                   // [output] of variances
  std::vector<double> errors_;
  std::int64_t seen_ = 0;
};

/// OnlineHme over `samples`, options.epochs times.
Hme fit_online(const Columns& columns, const std::vector<int>& branching, const Samples& samples,
               const EmOptions& start, const OnlineOptions& options);

}  // namespace trireme::science
