// train/engine/trainer.h -- one run's model, optimizer and data on this rank, and its next step.
//
//   Trainer trainer(recipe, world, samples);
//   while (trainer.position().step < 200) log(trainer.step().loss);
//
// Every rank has the whole model and takes its stretch of each step's samples; loss and gradient are the exact mean
// over the tokens of all of them. No files here: run.h keeps the run's directory. A program of one's own can use this
// class, or the rooms below it.
// Depends on: base, comm, data, device, models, nn, optim, parallel, spec.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/data/samples.h"
#include "trireme/device/memory_pool.h"
#include "trireme/nn/fp8_history.h"
#include "trireme/nn/stash.h"
#include "trireme/nn/state.h"
#include "trireme/optim/update.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/diagnose/memory_plan.h"
#include "trireme/train/engine/delayed_update.h"
#include "trireme/train/engine/engine.h"
#include "trireme/train/engine/feeder.h"
#include "trireme/train/engine/updates.h"

namespace trireme::train {

/// What one step was.
struct StepReport {
  spec::Position position;  ///< after it
  double loss = 0;          ///< mean over the tokens of all ranks
  double gradient_norm = 0;
  double learning_rate = 0;
  std::int64_t batch = 0;  ///< tokens of all ranks
  bool taken = true;       ///< false: fp16 gradients overflowed or the loss was refused, weights stay
  bool refused = false;    ///< by on_loss()
  double flops = 0;        ///< of the model, all ranks, without what was computed again
  double compute_s = 0, data_s = 0, comm_s = 0;
  std::optional<double> seconds = {};  ///< its share, where steps ran together
  bool redone = false;                 ///< its update was taken before the norm was known, and taken back
};

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

class Trainer {
 public:
  /// `recipe`, `world` and `samples` are borrowed. The model is `shape`, its weights drawn from run.seed, or those of
  /// model.init_from. ConfigError where the recipe and the model do not go together.
  Trainer(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world, const data::Samples& samples,
          MakeEngine& make = make_engine);

  const spec::ModelShape& shape() const { return shape_; }
  /// This rank's parameters: all of them unless the model is spread over ranks.
  nn::Params& params() {
    updates_->wait();
    return engine_->params();
  }
  const layout::Mesh& mesh() const { return engine_->mesh(); }
  /// What this rank computes with.
  at::Device device() { return engine_->data_parallel().device(); }
  /// The loss on samples, without training; on all ranks together.
  Evaluation evaluate(const data::Samples& samples, const EvaluateOptions& options);
  /// The last steps as their instructions ran, where a schedule was walked: Engine::timeline.
  std::string timeline() { return engine_->timeline(); }
  /// The model, where this rank holds all of it; an InternalError otherwise.
  models::Model& model();
  /// Parameters, optimizer, loss scale and position: all that the rest of the run follows from.
  nn::State& state() {
    updates_->wait();
    return state_;
  }
  /// What this rank uses, and used at most.
  const device::RankMemory& memory() const { return memory_; }
  /// What a step was planned to take of the GPU, before anything was allocated; no lines on a CPU.
  const plan::StepMemory& planned() const { return planned_; }
  /// That the run's ranks compute on, taken to be shared alike.
  int gpus() const { return std::max(1, world_.size() / sharing_); }
  const spec::Position& position() const { return position_; }
  /// After `state` was read from a checkpoint: rounds weights, and reads on from the new position.
  void loaded();

  /// One optimizer step, on all ranks together.
  StepReport step();
  /// Forward and backward of the next step's rows and nothing more: the weights and the position stay. What it sent and
  /// kept is then in the engine's account.
  void rehearse();
  Engine& engine() { return *engine_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  const spec::Recipe& recipe() const { return recipe_; }
  /// Whether parameters and state are those after the last step: where several ran together (pipeline.drain_every),
  /// they are those after the last of these until step() has told of all.
  bool at_rest() const { return told_later_.empty() && under_way_.empty(); }
  /// From now on step() starts the next step before it waits for this one's numbers, where nothing has to look at a
  /// step before the next begins: at steps with a validation, checkpoint or hash, at the last one, and after
  /// rest_soon(), it does not. False, and nothing changes, where that is not possible: several ranks, a loss scale,
  /// LAMB or LARS, late updates, on_gradients(), on_loss(). A step with NaN or Inf is noticed while the next
  /// runs; neither changes the weights.
  bool run_ahead();
  /// The next step() comes to rest.
  void rest_soon() { rest_soon_ = true; }
  /// Called in each step when gradients are complete, before the update: to look at them.
  void on_gradients(std::function<void(nn::Params&)> look) { look_ = std::move(look); }
  /// Who is told of every layer's passes from now on; borrowed.
  void trace(EventSink& events) { events_ = &events; }
  /// Called with the loss of each step before the update, on every rank with the same: false leaves the update out. It
  /// may throw; the weights are then as before the step.
  void on_loss(std::function<bool(double loss)> judge) { judge_ = std::move(judge); }
  /// Passes over the step whose numbers were none: its data was read, its update is left out.
  void skip_step();
  /// From now on the data goes on after so many of its tokens, wherever the pace stands.
  void skip_data_to(std::int64_t tokens);

 private:
  [[noreturn]] void explain(Fetched& fetched, double gradient_scale, const std::string& what);
  nn::Context context_for(double gradient_scale) { return context_for(gradient_scale, position_.step); }
  nn::Context context_for(double gradient_scale, std::int64_t step);
  /// The targets of all ranks in these batches. ConfigError where there are none.
  double count_all_targets(const std::vector<data::Batch>& batches, std::int64_t step);
  StepReport take_step();
  /// Of a step that was started, and is not told yet.
  struct UnderWay {
    Fetched fetched;
    StepReport report;
    double targets = 0, scale = 0;
  };
  StepReport step_ahead();
  void start_ahead();
  [[noreturn]] void give_up_ahead(UnderWay& sick, const DelayedUpdate::Told& told);
  void run_together(MultiStepEngine& engine);
  /// At the end of a step: the next one's 8-bit scales, where they are delayed.
  void advance_scales();
  void count_memory();

  const spec::Recipe& recipe_;
  comm::Group& world_;
  const data::Samples& samples_;
  spec::ModelShape shape_;
  device::RankMemory memory_;
  int sharing_ = 1;
  plan::StepMemory planned_;
  std::unique_ptr<nn::Stash> stash_;  // train.offload_activations only; outlives the engine's tapes
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::LossScale> loss_scale_;  // fp16 only
  std::unique_ptr<Updates> updates_;
  std::unique_ptr<nn::Fp8History> scales_;  // precision.gemm = "fp8-delayed" only
  nn::State state_;
  spec::Position position_;
  std::unique_ptr<Feeder> feeder_;
  std::function<void(nn::Params&)> look_;
  std::deque<StepReport> told_later_;  // of steps that ran together
  EventSink* events_ = nullptr;
  std::function<bool(double loss)> judge_;
  std::unique_ptr<MemoryWatch> watch_;             // of a GPU, by the first rank
  std::unique_ptr<DelayedUpdate> delayed_update_;  // run_ahead() only
  std::deque<UnderWay> under_way_;
  bool rest_soon_ = false;
};

/// The shape of the recipe's model: of [model], or of the folder that model.init_from names with the keys given there.
spec::ModelShape model_shape(const spec::Recipe& recipe);

}  // namespace trireme::train
