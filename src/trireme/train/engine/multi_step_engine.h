// train/engine/multi_step_engine.h -- the second door of an engine: several steps in one go, updates included.
//
// Where a pipeline stays full from one optimizer step to the next, nobody outside can stand between the two: the engine
// updates by itself and asks for what a step needs when it first needs it. In between, weights are of no single step;
// when run_steps() returns they are those after the last one.
// Depends on: data, nn, optim.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trireme/data/batch.h"
#include "trireme/nn/context.h"
#include "trireme/optim/optimizer.h"

namespace trireme::train {

/// What one of the steps needs.
struct StepWork {
  std::vector<data::Batch> batches;
  std::function<nn::Context()> contexts;  ///< as in Engine::run
  double learning_rate = 0;
};

struct StepsRequest {
  int steps = 1;
  int micros = 1;                          ///< of each step
  std::function<StepWork(int step)> work;  ///< asked for once each, in order, by every rank
  std::function<void(nn::Params&)> look;   ///< before each update; may be empty
  optim::Optimizer& optimizer;
};

/// Of one step, over all ranks.
struct StepMade {
  double loss = 0;  ///< over targets
  double flops = 0;
  double gradient_norm = 0;  ///< over all stages, before clipping
  double seconds = 0;        ///< from the update before to its own, on this rank
  double comm_s = 0;         ///< of them, waiting for others
  bool redone = false;       ///< its update was taken before the norm was known, and taken back
};

class MultiStepEngine {
 public:
  virtual ~MultiStepEngine() = default;
  /// Steps from one drain to the next: after every multiple of it the engine stands still.
  virtual std::int64_t drain_every() const = 0;
  /// On all ranks together. optim::NonFiniteGradients on all of them where a gradient is NaN or Inf on some.
  virtual std::vector<StepMade> run_steps(const StepsRequest& request) = 0;
};

}  // namespace trireme::train
