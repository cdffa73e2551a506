// train/engine/step_driver.h -- who takes a rank's steps: in which order it reads, computes, looks and updates.
//
// A driver is chosen once, from the engine that the recipe's layout makes and what the run asks for, one file each:
//   synchronous_driver.cpp  compute, look at the loss, update; the state is whole after every step
//   multi_step_driver.cpp   a MultiStepEngine runs up to its next drain; reports are told one by one
//   run_ahead_driver.cpp    the next step starts before this one's numbers are known (CUDA graphs, one rank)
//   ../servers/downpour_driver.cpp  replicas around parameter servers: steps up to the next rest, without barriers
//
// A role of ranks in a run is a driver and what it owns. A replica of parameter servers owns a TrainState whose engine
// computes alone, and a connection in place of Updates; some run a server on a thread beside it. It is at rest where
// all pushes are applied and every rank has fetched the same weights: there they are saved, hashed and evaluated.
// Whoever runs a role asks nothing but what is below, so the loop over steps (train/run) is the same for all.
// Depends on: base, nn, observe, spec.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/nn/loss_terms.h"
#include "trireme/nn/moe/balance.h"
#include "trireme/observe/step_record.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

/// What one step was.
struct StepReport {
  spec::Position position = {};                 ///< after it
  double loss = 0;                              ///< the total: weighted sum of the terms' means, over all ranks
  std::vector<observe::NamedLoss> losses = {};  ///< the terms, the main loss first
  std::vector<nn::moe::LayerLoads> loads = {};  ///< tokens of each expert, of every layer that has some
  std::optional<observe::ExpertsMoved> experts_moved = {};  ///< after this step
  double gradient_norm = 0;
  double learning_rate = 0;
  std::int64_t batch = 0;  ///< tokens of all ranks
  bool taken = true;       ///< false: fp16 gradients overflowed or the loss was refused, weights stay
  bool refused = false;    ///< by on_loss()
  double flops = 0;        ///< of the model, all ranks, without what was computed again
  double compute_s = 0, data_s = 0, comm_s = 0;
  std::optional<double> seconds = {};      ///< its share, where steps ran together
  bool redone = false;                     ///< its update was taken before the norm was known, and taken back
  std::int64_t stolen = 0;                 ///< micro-batches of other ranks that this one took
  std::optional<double> noise_scale = {};  ///< in tokens, where it is measured
  std::optional<double> staleness = {};    ///< updates of others between fetch and push, the mean, where there are any
  std::vector<observe::LayerNoise> noise_scales = {};  ///< of each layer
};

/// Puts the terms of a whole step into its report.
void tell_losses(StepReport& report, const std::vector<nn::LossTerm>& terms, const nn::LossCounts& counts);
/// "the loss is nan", and of several terms which of them are NaN or Inf.
std::string describe_loss(const StepReport& report);

/// A loss or gradient that is NaN or Inf. The weights are as before the step.
class NonFiniteError : public Error {
 public:
  NonFiniteError(std::string message, std::string hint, std::int64_t step)
      : Error(std::move(message), std::move(hint)), step_(step) {}
  const char* kind() const noexcept override { return "training diverged"; }
  std::int64_t step() const { return step_; }

 private:
  std::int64_t step_;
};

class StepDriver {
 public:
  virtual ~StepDriver() = default;
  /// Advances, by one step or by several at once, and tells of the next one. On all ranks of the role together.
  virtual StepReport next() = 0;
  /// Whether what the role owns is as after the last step that was told.
  virtual bool at_rest() const { return true; }
  /// The next step that is told comes to rest, where that is in the driver's hands.
  virtual void rest_soon() {}
  /// Whether a step is looked at between its gradients and its update: only then one can be left out, and a copy of the
  /// state be made beside the next one's passes.
  virtual bool looks_before_update() const = 0;
  /// The state was read from a checkpoint, at rest: what is known of steps to come is not theirs any more.
  virtual void restart() {}
  /// Queues of its own, by Little's law, since it began.
  virtual std::vector<observe::NamedQueue> queues() const { return {}; }
};

struct TrainState;
/// The one for the state's engine. `state` is borrowed.
std::unique_ptr<StepDriver> make_driver(TrainState& state);
/// Of steps that run ahead; null where that is not possible: Trainer::run_ahead.
std::unique_ptr<StepDriver> make_run_ahead_driver(TrainState& state);

// One a file.
class SingleStepEngine;
class MultiStepEngine;
std::unique_ptr<StepDriver> make_synchronous_driver(TrainState& state, SingleStepEngine& engine);
std::unique_ptr<StepDriver> make_multi_step_driver(TrainState& state, MultiStepEngine& engine);
std::unique_ptr<StepDriver> make_downpour_driver(TrainState& state, SingleStepEngine& engine);

}  // namespace trireme::train
