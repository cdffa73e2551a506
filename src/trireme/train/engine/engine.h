// train/engine/engine.h -- how this rank computes: its layers, and how ranks add up what they found.
//
// An Engine is a rank's part of the model, its state and its groups. What it can be asked for is one of two small
// interfaces, and no engine has both: a SingleStepEngine computes the gradients of one step and leaves the update to
// its step driver; a MultiStepEngine keeps a pipeline full from one optimizer step to the next, so that nobody outside
// can stand between two of them: it updates by itself and asks for what a step needs when it first needs it. One file
// for each way of spreading a model over ranks. Whatever the way, gradients come out as the exact mean over the tokens
// of all ranks, and parameters have their global names.
// Depends on: comm, data, models, nn, optim, parallel, spec.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/comm/group.h"
#include "trireme/data/batch.h"
#include "trireme/data/samples.h"
#include "trireme/models/model.h"
#include "trireme/optim/optimizer.h"
#include "trireme/optim/update.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/engine/step_plan.h"
#include "trireme/train/run/evaluate.h"

namespace trireme::nn {
class Fp8History;
}

namespace trireme::train {

/// Makes a context that lacks only what a batch says.
using MakeContext = std::function<nn::Context()>;

/// What an engine consists of, whatever it computes with it. All is the engine's own.
struct EngineParts {
  nn::Params* params = nullptr;        ///< this rank's; they have memory
  std::vector<std::string> all_names;  ///< of the model's parameters, whoever holds them
  const layout::Mesh* mesh = nullptr;  ///< the ranks by the recipe's axes, which placements speak of
  Share share;                         ///< which rows of a step this rank reads
  comm::Group* readers = nullptr;      ///< the ranks that together read each row once
  comm::Group* pipeline = nullptr;     ///< the ranks that hold the stages; null: every rank runs all
  /// By trainable parameter, in their order: whether of the pipeline's ranks this one counts it. Empty: it counts all.
  std::vector<bool> counted_params = {};
  parallel::DataParallel* data_parallel = nullptr;  ///< how copies of parameters agree, and where updates happen
  models::Model* whole_model = nullptr;             ///< null: this rank holds a part
  nn::Params* layer_params = nullptr;               ///< as this rank's layers compute with them
  nn::moe::Balance* balance = nullptr;              ///< loads of this rank's experts; null: the model has none
  layout::AxisNames expert_axes = {};               ///< along which experts are sharded
  comm::Group* loads = nullptr;                     ///< the ranks over which they are summed; null: this one alone
};

class Engine {
 public:
  virtual ~Engine() = default;

  nn::Params& params() { return *parts_.params; }
  const layout::Mesh& mesh() const { return *parts_.mesh; }
  const std::vector<std::string>& all_names() const { return parts_.all_names; }
  const Share& share() const { return parts_.share; }
  comm::Group& readers() { return *parts_.readers; }
  comm::Group* pipeline() { return parts_.pipeline; }
  const std::vector<bool>& counted_params() const { return parts_.counted_params; }
  parallel::DataParallel& data_parallel() { return *parts_.data_parallel; }
  models::Model* whole_model() { return parts_.whole_model; }
  nn::Params* layer_params() { return parts_.layer_params; }
  nn::moe::Balance* balance() { return parts_.balance; }
  comm::Group* load_ranks() { return parts_.loads; }
  /// params() have new numbers: they are on their way to whoever computes with them. On all ranks together.
  void updated() { data_parallel().updated(); }

  /// The losses on samples, without training; the same on every rank.
  virtual Evaluation evaluate(const data::Samples& samples, const EvaluateOptions& options) = 0;
  /// Forward and backward of the batches and nothing more. Gradients are left behind.
  virtual void rehearse(std::vector<data::Batch>& batches, const MakeContext& contexts) = 0;
  /// Where numbers stopped being numbers in a step: non_finite.h.
  virtual std::string first_not_finite(std::vector<data::Batch>& batches, const MakeContext& contexts) = 0;
  /// How often a part of the model runs in a step.
  struct Passes {
    std::int64_t layers = 0;          ///< of the part; of a model with an encoder its decoder's
    std::int64_t encoder_layers = 0;  ///< likewise its encoder's
    std::int64_t expert_layers = 0, encoder_expert_layers = 0;  ///< of these, those with experts
    bool embedding = false, encoder_embedding = false, head = false;
    double forward = 0, again = 0, backward = 0;     ///< in micro-batches; again: forward, for the backward of a stage
    std::int64_t fetches = 0, weight_backwards = 0;  ///< passes that fetch its weights, that add to its gradients
    std::int64_t predictions = 0;                    ///< of its weights
  };
  /// Tensors that cross the borders of stages in a step, of a micro-batch each: hidden states, or their gradients, of
  /// the stream that the head reads and of an encoder's beside it, and the token ids that pass an encoder by.
  struct Boundaries {
    std::int64_t hidden = 0, source = 0, ids = 0;
  };
  /// Gradients that ranks of a pipeline sum since they have the same parameters.
  struct CopySum {
    comm::Group* group = nullptr;
    double bytes = 0;  ///< of this rank's gradients
  };
  /// What this rank keeps and whom it talks to, for people who ask why: explain.h.
  struct Account {
    parallel::DataParallel* data_parallel = nullptr;
    parallel::MeshGroups* groups = nullptr;
    std::int64_t layers = 0;  ///< on this rank
    bool embedding = true, head = true;
    Boundaries sent = {}, received = {};  ///< of a pipeline
    std::vector<CopySum> copies = {};     ///< likewise
    int loss_terms = 1;                   ///< of the last step
    std::int64_t activations = 0;         ///< bytes that the last step's first micro left for its backward
    std::map<int, Passes> passes = {};    ///< by chunk of a pipeline; empty: each micro-batch passes everything once
  };
  virtual Account account() = 0;
  /// How a step's first micro-batch runs, for the gradient noise scale. On all ranks together.
  virtual parallel::FirstMicroOptions first_micro();
  /// What comes from other stages of a pipeline, from when its receive is posted; nothing: there are none.
  virtual std::optional<QueueReading> receives() { return std::nullopt; }
  /// Activations of micro-batches between forward and backward in the stages of a pipeline, likewise.
  virtual std::optional<QueueReading> activations() { return std::nullopt; }
  /// The last steps as their instructions ran, a file for `trireme schedule draw --measured`: on rank 0, empty
  /// elsewhere and where there is no schedule. On all ranks together.
  virtual std::string timeline() { return ""; }

 protected:
  EngineParts parts_;  // complete when the engine is built
};

/// Of the whole step, over all ranks.
struct StepSums {
  std::vector<nn::LossTerm> losses = {};  ///< of this rank and perhaps still on a GPU after defer_losses()
  double flops = 0;                       ///< of the model, without what was computed again
  double comm_s = 0;                      ///< that this rank waited for others
};

/// The next batch that this rank takes; nothing: there is none left.
using NextBatch = std::function<std::optional<data::Batch>()>;

/// Computes one step's gradients; the update is its driver's.
class SingleStepEngine : public Engine {
 public:
  /// Forward and backward of the batches, gradients summed over the ranks that share a parameter.
  virtual StepSums compute(std::vector<data::Batch>& batches, const MakeContext& contexts) = 0;
  /// As compute(), of batches that are asked for one after the other: who takes which is known only then.
  virtual StepSums compute_from(const NextBatch& next, const MakeContext& contexts);
  /// Of these batches alone: gradients stay this rank's, and no other rank takes part.
  virtual StepSums compute_alone(std::vector<data::Batch>& batches, const MakeContext& contexts);
  void rehearse(std::vector<data::Batch>& batches, const MakeContext& contexts) final { compute(batches, contexts); }
  /// For optim::update; null: this rank knows all.
  virtual const optim::AcrossRanks* across() { return data_parallel().across(); }
  /// From now on compute() waits for no loss; false where it cannot do that: losses are added up over ranks.
  virtual bool defer_losses(bool) { return false; }
};

/// What one of several steps needs.
struct StepWork {
  std::vector<data::Batch> batches;
  std::function<nn::Context(double loss_scale)> contexts;
  double learning_rate = 0;
};

struct StepsRequest {
  int steps = 1;
  int micros = 1;                          ///< of each step
  std::function<StepWork(int step)> work;  ///< asked for once each, in order, by every rank
  std::function<void(nn::Params&)> look;   ///< before each update; may be empty
  std::function<void()> taken;             ///< after each that stays, while weights are its own; may be empty
  optim::Optimizer& optimizer;
  optim::LossScale* loss_scale = nullptr;  ///< fp16
  nn::Fp8History* fp8_history = nullptr;   ///< delayed FP8 scales
};

/// Of one step, over all ranks.
struct StepMade {
  std::vector<nn::LossTerm> losses = {};
  double flops = 0;
  double gradient_norm = 0;  ///< over all stages, before clipping
  double seconds = 0;        ///< from the update before to its own, on this rank
  double comm_s = 0;         ///< of them, waiting for others
  bool redone = false;       ///< its update was taken before the norm was known, and taken back
  bool taken = true;         ///< false: its gradients overflowed fp16
};

/// Runs several steps in one go, updates included. In between, weights are of no single step; when run() returns they
/// are those after the last one.
class MultiStepEngine : public Engine {
 public:
  /// Steps from one drain to the next: after every multiple of it the engine stands still.
  virtual std::int64_t drain_every() const = 0;
  /// On all ranks together. optim::NonFiniteGradients on all of them where a gradient is NaN or Inf on some.
  virtual std::vector<StepMade> run(const StepsRequest& request) = 0;
  /// Updates that weights lacked so far, at most, where virtual workers go on in waves: of their own worker, of others.
  struct Staleness {
    int local = 0, global = 0;
    std::int64_t pushes = 0;  ///< of waves
  };
  virtual Staleness staleness() const { return {}; }
  /// Of the last run: versions of weights at once, at most; and what steps that may be taken back are restored from.
  struct VersionBytes {
    std::int64_t device = 0, host = 0;
  };
  virtual VersionBytes version_bytes() const { return {}; }
};

using AnyEngine = std::variant<std::unique_ptr<SingleStepEngine>, std::unique_ptr<MultiStepEngine>>;

/// What happens to a model before it is used.
struct PrepareParams {
  /// Some get no gradient; `all` are the names of the whole model's.
  std::function<void(nn::Params& mine, const std::vector<std::string>& all)> freeze;
  /// Memory where there is none, and first numbers.
  std::function<void(nn::Params& mine)> fill;
  models::BuildOptions::Adapt adapt = nullptr;  ///< layers around the model's own
};

/// The one that the recipe's layout asks for. On all ranks together; `recipe` and `world` are borrowed. A ConfigError
/// where the layout does not fit the ranks or the model.
AnyEngine make_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                      std::int64_t length, const PrepareParams& prepare);

// One a file.
/// Every rank runs the whole chain of layers, of whole matrices or parts of them.
AnyEngine make_replica_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                              std::int64_t length, const PrepareParams& prepare);
/// layout.pp ranks hold a stage each.
AnyEngine make_pipeline_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                               std::int64_t length, const PrepareParams& prepare);
/// What an asynchronous schedule on layout.pp stages computes, on one rank: what verify holds such runs against.
AnyEngine make_delayed_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                              std::int64_t length, const PrepareParams& prepare);
/// Any of these.
using MakeEngine = AnyEngine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                             std::int64_t length, const PrepareParams& prepare);

/// Along which ranks have parts of the same rows.
layout::AxisNames row_axes(const layout::Mesh& mesh);

/// What layers are built with.
models::BuildOptions build_options(const spec::Recipe& recipe);
/// The same, with an entry of the chain for each block that a pipeline may be cut at: where blocks are recomputed by a
/// plan of a chain, that is made for each chunk when it is known.
models::BuildOptions cut_options(const spec::Recipe& recipe);

}  // namespace trireme::train
