// train/engine/train_state.h -- what a worker trains with, whoever drives its steps: model, optimizer, data, position.
//
// Depends on: base, comm, data, device, models, nn, optim, parallel, spec.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/data/prefetch.h"
#include "trireme/data/samples.h"
#include "trireme/device/memory_pool.h"
#include "trireme/nn/activation_arena.h"
#include "trireme/nn/fp8.h"
#include "trireme/nn/stash.h"
#include "trireme/nn/state.h"
#include "trireme/optim/update.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/diagnose/memory.h"
#include "trireme/train/engine/engine.h"
#include "trireme/train/engine/expert_moves.h"
#include "trireme/train/engine/noise_scale.h"
#include "trireme/train/engine/step_plan.h"
#include "trireme/train/engine/updates.h"
#include "trireme/train/engine/weight_average.h"

namespace trireme::train {

// This rank's batches, step after step, read in the background.

/// A step's batches, one a micro-batch.
struct Fetched {
  StepPlan plan;
  std::vector<data::Batch> batches;
  double waited_s = 0;
};

class Feeder {
 public:
  /// `recipe` and `samples` are borrowed.
  Feeder(const spec::Recipe& recipe, const data::Samples& samples, spec::Position from, Share share);
  Fetched next();
  /// Batches that were read ahead, by Little's law.
  QueueReading queue() { return prefetch_->queue(); }

 private:
  const spec::Recipe& recipe_;
  Share share_;
  spec::Position position_;
  std::unique_ptr<data::Prefetch> prefetch_;
};

/// What the gradients of a step's losses are multiplied by: Context::gradient_scale and sample_scale.
struct StepScales {
  double gradient = 1, sample = 1;
};
StepScales scales_of(const nn::LossCounts& counts, double loss_scale = 1);

struct TrainState {
  /// Recipe, ranks and data are borrowed. On all ranks together; ConfigErrors where they do not go together.
  TrainState(const spec::Recipe& from, const spec::ModelShape& model, comm::Group& ranks, const data::Samples& data,
             MakeEngine& make);
  TrainState(const TrainState&) = delete;
  TrainState& operator=(const TrainState&) = delete;

  /// The next step's batches.
  Fetched fetch();
  /// The targets and samples of all ranks in a step. ConfigError where there are no targets.
  nn::LossCounts count_losses(const Fetched& fetched);
  nn::Context context_for(const StepScales& scales, std::int64_t step);
  /// At the end of a step: the next one's 8-bit scales, where they are delayed.
  void advance_scales();
  /// Likewise the biases of routers, where the step was `taken`, and the places of experts: the loads of experts, over
  /// all ranks.
  struct Balanced {
    std::vector<nn::moe::LayerLoads> loads;
    std::optional<observe::ExpertsMoved> moved;
  };
  Balanced advance_balance(bool taken);
  void count_memory();
  /// Finds the first place that is NaN or Inf in the step after `position`.
  [[noreturn]] void raise_non_finite(Fetched& fetched, const StepScales& scales, const std::string& what);

  const spec::Recipe& recipe;
  comm::Group& world;
  const data::Samples& samples;
  const spec::ModelShape shape;
  device::RankMemory memory;
  int sharing = 1;                             ///< ranks that compute on this one's GPU
  MemoryPlan planned;                          ///< no stages on a CPU
  std::unique_ptr<nn::Stash> stash;            ///< train.offload_activations only; outlives the engine's tapes
  std::unique_ptr<nn::ActivationArena> arena;  ///< train.contiguous_activations only
  AnyEngine any_engine;
  Engine& engine;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::LossScale> loss_scale;  ///< fp16 only
  std::unique_ptr<WeightAverage> average;        ///< optim.ema_decay only
  std::unique_ptr<Updates> updates;
  std::unique_ptr<NoiseScale> noise_scale;      ///< train.noise_scale or batch.kind = "noise" only
  std::unique_ptr<ExpertMoves> expert_moves;    ///< experts.move_experts only
  std::unique_ptr<nn::Fp8History> fp8_history;  ///< precision.gemm = "fp8-delayed" only
  nn::State registry;                           ///< all that the rest of the run follows from
  std::vector<std::string> expert_layers;       ///< of the whole model; empty: none has experts
  spec::Position position;
  std::unique_ptr<Feeder> feeder;  ///< null: begins at the position
  // Hooks: Trainer's functions of these names.
  std::function<void(nn::Params&)> look;
  std::function<bool(double loss)> judge;
  std::function<void(std::int64_t step, double seconds)> micro;
  EventSink* events = nullptr;
  bool keep_journal = false;  ///< Downpour SGD: of all parts, for its serial twin
};

/// Freezes, and gives parameters the numbers they begin with: drawn, or another model's. prepare_params.cpp
PrepareParams preparation(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world);

}  // namespace trireme::train
