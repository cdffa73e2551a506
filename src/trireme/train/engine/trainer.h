// train/engine/trainer.h -- one run's model, optimizer and data on this rank, and its next step.
//
//   Trainer trainer(recipe, shape, world, samples);
//   while (trainer.position().step < 200) log(trainer.step().loss);
//
// A thin object: what is trained is a TrainState (train_state.h), who takes the steps a StepDriver (step_driver.h).
// Loss and gradient are the exact mean over the tokens of all ranks. No files here: run.h keeps the run's directory. A
// program of one's own can use this class, or the rooms below it.
// Depends on: train_state, step_driver.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "trireme/train/engine/step_driver.h"
#include "trireme/train/engine/train_state.h"

namespace trireme::train {

class Trainer {
 public:
  /// `recipe`, `world` and `samples` are borrowed. The model is `shape`, its weights drawn from run.seed, or those of
  /// model.init_from. ConfigError where the recipe and the model do not go together.
  Trainer(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world, const data::Samples& samples,
          MakeEngine& make = make_engine);

  const spec::ModelShape& shape() const { return state_.shape; }
  /// This rank's parameters: all of them unless the model is spread over ranks.
  nn::Params& params() {
    state_.updates->wait();
    return state_.engine.params();
  }
  const layout::Mesh& mesh() const { return state_.engine.mesh(); }
  /// What this rank computes with.
  at::Device device() { return state_.engine.data_parallel().device(); }
  /// The losses on samples, without training; on all ranks together.
  Evaluation evaluate(const data::Samples& samples, const EvaluateOptions& options);
  /// The last steps as their instructions ran, where a schedule was executed: Engine::timeline.
  std::string timeline() { return state_.engine.timeline(); }
  /// The model, where this rank holds all of it; an InternalError otherwise.
  models::Model& model();
  /// Parameters, optimizer, loss scale and position: all that the rest of the run follows from.
  nn::State& state() {
    state_.updates->wait();
    return state_.registry;
  }
  /// What this rank uses, and used at most.
  const device::RankMemory& memory() const { return state_.memory; }
  /// What a step was planned to take of the GPU, before anything was allocated; no stages on a CPU.
  const MemoryPlan& planned() const { return state_.planned; }
  /// That the run's ranks compute on, taken to be shared alike.
  int gpus() const { return std::max(1, state_.world.size() / state_.sharing); }
  const spec::Position& position() const { return state_.position; }
  /// Batches that were read ahead; none before the first step.
  std::optional<QueueReading> prefetch_queue() {
    return state_.feeder ? std::optional(state_.feeder->queue()) : std::nullopt;
  }
  /// What came from other stages, and updates that ran beside the next step; where there are such.
  std::optional<QueueReading> receives_queue() { return state_.engine.receives(); }
  std::optional<QueueReading> updates_queue() { return state_.updates->queue(); }
  /// What else this rank has, by name: activations that wait for their backward, what is copied between a GPU and its
  /// host.
  std::vector<observe::NamedQueue> other_queues();
  /// After `state` was read from a checkpoint: rounds weights, and reads on from the new position.
  void loaded();

  /// One optimizer step, on all ranks together.
  StepReport step();
  /// Forward and backward of the next step's rows and nothing more: the weights and the position stay. What it sent and
  /// kept is then in the engine's account.
  void rehearse();
  Engine& engine() { return state_.engine; }
  const StepDriver& driver() const { return *driver_; }
  optim::Optimizer& optimizer() { return *state_.optimizer; }
  const spec::Recipe& recipe() const { return state_.recipe; }
  /// Whether parameters and state are those after the last step: where several ran together (pipeline.drain_every),
  /// they are those after the last of these until step() has told of all.
  bool at_rest() const { return driver_->at_rest(); }
  /// From now on step() starts the next step before it waits for this one's numbers, where nothing has to look at a
  /// step before the next begins: at steps with a validation, checkpoint or hash, at the last one, and after
  /// rest_soon(), it does not. False, and nothing changes, where that is not possible: several ranks, a loss scale,
  /// LAMB or LARS, late updates, on_gradients(), on_loss(). A step with NaN or Inf is noticed while the next
  /// runs; neither changes the weights. At rest.
  bool run_ahead();
  /// The next step() comes to rest.
  void rest_soon() { driver_->rest_soon(); }
  /// Called in each step when gradients are complete, before the update: to look at them.
  void on_gradients(std::function<void(nn::Params&)> look) { state_.look = std::move(look); }
  /// Who is told of every layer's passes from now on; borrowed.
  void trace(EventSink& events) { state_.events = &events; }
  /// Called with the total loss of each step before the update, on every rank with the same: false leaves the update
  /// out. It may throw; the weights are then as before the step.
  void on_loss(std::function<bool(double loss)> judge) { state_.judge = std::move(judge); }
  /// Before the first step: what replicas of parameter servers do is written down, for their serial twin.
  void keep_journal() { state_.keep_journal = true; }
  /// Called after each micro-batch, or part of a step, that this rank took because it was free for it: where work is
  /// stolen, and in Downpour SGD. With the number of its step and what it took.
  void on_micro(std::function<void(std::int64_t step, double seconds)> micro) { state_.micro = std::move(micro); }
  /// Passes over the step whose loss was NaN or Inf: its data was read, its update is left out.
  void skip_step();
  /// From now on the data goes on after so many of its tokens, wherever the pace stands.
  void skip_data_to(std::int64_t tokens);

 private:
  TrainState state_;
  std::unique_ptr<StepDriver> driver_;
  bool runs_ahead_ = false;
  std::unique_ptr<MemoryWatch> watch_;  // of a GPU, by the first rank
};

/// The shape of the recipe's model: of [model], or of the folder that model.init_from names with the keys given there.
spec::ModelShape model_shape(const spec::Recipe& recipe);

}  // namespace trireme::train
