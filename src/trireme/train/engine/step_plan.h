// train/engine/step_plan.h -- which samples a rank reads in which step: a function of the recipe and the position.
//
// A step takes the next batch.global_batch_tokens / sequence samples. Ranks take neighbouring stretches of them, as
// equal as can be, and cut theirs into micro-batches. Another number of ranks cuts the same samples otherwise.
// Depends on: base, spec.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/spec/recipe.h"

namespace trireme::train {

struct StepPlan {
  spec::Position before, after;
  spec::Hyperparameters hyperparameters;
  std::int64_t first_sample = 0, samples = 0;           ///< of all ranks
  std::vector<std::vector<std::int64_t>> microbatches;  ///< sample numbers of this rank's rows
  std::size_t fillers = 0;                              ///< of them at the end, micro-batches of others' rows: no loss
};

struct Share {
  int rank = 0, ranks = 1;
  std::int64_t length = 0;            ///< tokens a row
  std::int64_t micro_batch_size = 0;  ///< rows; 0: all at once
  std::vector<double> weights = {};   ///< how many rows each rank takes, relative to the others; empty: equal (HetSeq)
  bool lockstep = false;              ///< all ranks run the same number of micro-batches: they meet in each of them
};

/// The step after `position`, whose batch is a whole number of rows. In lockstep a rank with fewer rows than others
/// cuts them smaller, and where there are not enough fills up with a row that has no loss. A ConfigError where
/// `position` is between two rows.
StepPlan plan_step(const spec::Recipe& recipe, spec::Position position, const Share& share);

/// The steps of the whole run: train.steps, or how many reach train.tokens.
std::int64_t last_step(const spec::Recipe& recipe);

}  // namespace trireme::train
