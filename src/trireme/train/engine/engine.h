// train/engine/engine.h -- how this rank computes its part of a step: its layers, and how ranks add up what they found.
//
// One file for each way of spreading a model over ranks; Trainer knows only this. Whatever the way, gradients come out
// as the exact mean over the tokens of all ranks, and parameters have their global names.
// Depends on: comm, data, models, nn, optim, parallel, spec.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/data/batch.h"
#include "trireme/data/samples.h"
#include "trireme/models/model.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/engine/multi_step_engine.h"
#include "trireme/train/engine/step_plan.h"
#include "trireme/train/run/evaluate.h"

namespace trireme::train {

/// Of the whole step, over all ranks.
struct StepSums {
  double loss = 0;                         ///< over targets
  double flops = 0;                        ///< of the model, without what was computed again
  double comm_s = 0;                       ///< that this rank waited for others
  std::vector<nn::LossTerm> pending = {};  ///< Engine::leave_losses(): in place of `loss`, perhaps still on a GPU
};

class Engine {
 public:
  using MakeContext = std::function<nn::Context()>;
  virtual ~Engine() = default;

  /// This rank's parameters; they have memory.
  virtual nn::Params& params() = 0;
  /// The ranks by the recipe's axes, which the parameters' placements speak of.
  virtual const layout::Mesh& mesh() const = 0;
  /// The names of all parameters of the model, whoever holds them.
  virtual std::vector<std::string> all_names() const = 0;
  /// Which rows of a step this rank reads, and the ranks that together read each row once.
  virtual Share share() const = 0;
  virtual comm::Group& readers() = 0;
  /// Forward and backward of the batches, gradients summed over the ranks that share a parameter. `contexts` makes a
  /// context that lacks only what the batch says.
  virtual StepSums run(std::vector<data::Batch>& batches, const MakeContext& contexts) = 0;
  /// From now on run() waits for no loss; false where it cannot do that: losses are added up over ranks.
  virtual bool leave_losses(bool) { return false; }
  /// How copies of the parameters agree, and where what is updated lives.
  virtual parallel::DataParallel& data_parallel() = 0;
  /// params() have new numbers: they are on their way to whoever computes with them. On all ranks together.
  void updated() { data_parallel().updated(); }
  /// For optim::update; null: this rank knows all.
  virtual const optim::AcrossRanks* across() { return nullptr; }
  /// The loss on samples, without training; the same on every rank.
  virtual Evaluation evaluate(const data::Samples& samples, const EvaluateOptions& options) = 0;
  /// Where numbers stopped being numbers in a step: not_finite.h.
  virtual std::string first_not_finite(std::vector<data::Batch>& batches, const MakeContext& contexts) = 0;
  /// What this rank keeps and whom it talks to, for people who ask why: explain.h.
  struct Account {
    parallel::DataParallel* data_parallel = nullptr;
    parallel::MeshGroups* groups = nullptr;
    std::int64_t layers = 0;  ///< on this rank
    bool embedding = true, head = true;
    std::int64_t pipeline_messages = 0;  ///< of a step
    std::int64_t activations = 0;        ///< bytes that the last step's first micro left for its backward
  };
  virtual Account account() = 0;
  /// The model, where this rank holds all of it; null otherwise.
  virtual models::Model* whole_model() { return nullptr; }
  /// The parameters as layers compute with them, of all layers; null where this rank does not run all of them.
  virtual nn::Params* layer_params() { return nullptr; }
  /// The last steps as their instructions ran, a file for `trireme schedule draw --measured`: on rank 0, empty
  /// elsewhere and where there is no schedule. On all ranks together.
  virtual std::string timeline() { return ""; }
  /// Not null: it updates by itself, several steps in one go, and run() is not called.
  virtual MultiStepEngine* together() { return nullptr; }
};

/// What happens to parameters before they are used.
struct PrepareParams {
  /// Some get no gradient; `all` are the names of the whole model's.
  std::function<void(nn::Params& mine, const std::vector<std::string>& all)> freeze;
  /// Memory where there is none, and first numbers.
  std::function<void(nn::Params& mine)> fill;
};

/// The one that the recipe's layout asks for. On all ranks together; `recipe` and `world` are borrowed. A ConfigError
/// where the layout does not fit the ranks or the model.
std::unique_ptr<Engine> make_engine(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world,
                                    std::int64_t length, const PrepareParams& prepare);

// One a file.
/// Every rank runs the whole chain of layers, of whole matrices or parts of them.
std::unique_ptr<Engine> make_replica_engine(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                            comm::Group& world, std::int64_t length, const PrepareParams& prepare);
/// layout.pp ranks hold a stage each.
std::unique_ptr<Engine> make_pipeline_engine(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                             comm::Group& world, std::int64_t length, const PrepareParams& prepare);
/// What an asynchronous schedule on layout.pp stages computes, on one rank: what verify holds such runs against.
std::unique_ptr<Engine> make_delayed_engine(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                            comm::Group& world, std::int64_t length, const PrepareParams& prepare);
/// Any of these.
using MakeEngine = std::unique_ptr<Engine>(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                           comm::Group& world, std::int64_t length, const PrepareParams& prepare);

/// What layers are built with.
models::BuildOptions build_options(const spec::Recipe& recipe);

}  // namespace trireme::train
