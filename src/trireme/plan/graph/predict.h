// plan/graph/predict.h -- how long a step of a strategy, or of a plan with pipeline stages, takes where it is run.
//
//   const Prediction step = predict(both, strategy, pricing);         // to be held beside `trireme graph run`
//
// Searches compare strategies, so their cost leaves out what all of them pay alike and prices gradients as if they were
// sent in buckets. A prediction is of what the executor does: every conversion by itself, with its copies where the
// profile has them, gradient descent included, and the stages of a plan by a replay of its schedule.
// Depends on: strategy, staged, schedule.
#pragma once

#include "trireme/plan/graph/staged.h"

namespace trireme::plan::graph {

struct Prediction {
  double seconds = 0;
  double compute_seconds = 0, communication_seconds = 0;  ///< of a rank; with stages of the busiest one
  double update_seconds = 0;                              ///< gradient descent
  double waiting_seconds = 0;                             ///< with stages: in which the busiest rank waits for others
  std::size_t measured = 0, priced = 0;  ///< operators and conversions that the profile has, and that it lacks
};

/// The pricing's mesh is the strategy's.
Prediction predict(const Graph& both, const Strategy& strategy, const Pricing& pricing);

/// Of the whole batch's forward graph. ConfigError where the plan contradicts itself.
Prediction predict(const Graph& forward, const StagedPlan& plan, const Pricing& pricing);

}  // namespace trireme::plan::graph
