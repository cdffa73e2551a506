// pipeline/stage_update.h -- one stage updates by itself, knowing nothing of the others' gradients.
//
// Asynchronous schedules: the stage clips the gradients of its own parameters to optim.grad_clip_norm by their own
// norm. A parameter that other stages hold too is clipped by its own norm alone, so that all of them make the same of
// it. In fp16 gradients that overflow count as zero: a stage that left its update out would be one behind the others.
// Depends on: nn, optim, reduction.
#pragma once

#include "trireme/optim/update.h"
#include "trireme/pipeline/reduction.h"

namespace trireme::pipeline {

struct StageUpdateOptions {
  double learning_rate = 0;
  double loss_scale = 1;      ///< what gradients were multiplied by
  bool may_overflow = false;  ///< else NaN or Inf in gradients is optim::NonFiniteGradients
  const optim::AcrossRanks* across = nullptr;
};

struct StageUpdated {
  double squares = 0;         ///< of its own parameters' gradients, as they count, unscaled, before clipping
  double shared_squares = 0;  ///< of those that other stages hold too, where this rank counts them
  bool finite = true;         ///< false: some overflowed, and counted as zero
};

/// Every rank of the stage calls it together.
StageUpdated update_stage(optim::Optimizer& optimizer, const GradientReduction& reduction,
                          const StageUpdateOptions& options);

}  // namespace trireme::pipeline
