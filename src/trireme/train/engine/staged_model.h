// train/engine/staged_model.h -- the model cut into stages: ranks of a pipeline execute a schedule, pipelines side by
// side share a step's rows.
//
// What both engines of a pipeline consist of: the one that computes a step at a time (PipelineEngine) and the one
// that stays full over several (pipeline_steps.cpp).
// Depends on: comm, pipeline, schedule, train.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/pipeline/executor.h"
#include "trireme/pipeline/waves.h"
#include "trireme/train/engine/engine.h"
#include "trireme/train/engine/layer_dropping.h"
#include "trireme/train/engine/pipeline_split.h"
#include "trireme/train/engine/recipe_layout.h"
#include "trireme/train/engine/teacher.h"

namespace trireme::train {

class StagedModel {
 public:
  /// On all ranks together; `recipe` and `world` are borrowed.
  StagedModel(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& world, std::int64_t length,
              const PrepareParams& prepare);

  EngineParts parts();
  Engine::Account account();
  parallel::FirstMicroOptions first_micro();
  /// Of the thread that executes.
  QueueMeter& receives() { return receives_; }
  QueueMeter& activations() { return activations_; }
  std::string timeline();
  Evaluation evaluate(const data::Samples& samples, const EvaluateOptions& options);
  std::string first_not_finite(std::vector<data::Batch>& batches, const MakeContext& contexts);
  /// Executes the table of one step; the update is somebody else's.
  StepSums execute(std::vector<data::Batch>& batches, const MakeContext& contexts);
  /// Norms over all stages, of the table that was executed last.
  const optim::AcrossRanks* across() { return &executor_->across(); }

  const spec::Recipe& recipe() const { return recipe_; }
  ParallelGroups& groups() { return *parallel_groups_; }
  comm::Group& pipeline() { return pipeline_; }
  pipeline::Stage& stage() { return stage_; }
  parallel::DataParallel& data_parallel() { return *data_parallel_; }
  schedule::Schedule make_table(int micros, int steps) const;
  pipeline::Micro micro_of(data::Batch& batch, const MakeContext& contexts) const;
  /// Where tensor-parallel ranks send a part of each boundary tensor; null: each sends its own whole.
  comm::Group* scatter() const { return recipe_.pipeline.scatter_gather ? parallel_groups_->parallel.tensor : nullptr; }
  /// Ranks that hold this stage or parts of it, in this pipeline and in others; null: no other does. On all ranks of
  /// the world together when first asked.
  comm::Group* stage_ranks();
  /// Virtual workers (HetPipe): over whom this rank sums which parameters of its chunk.
  std::vector<pipeline::WaveShare> wave_shares();
  /// Likewise what ranks of this rank's stage sum of each minibatch's gradients. On all ranks together.
  std::vector<std::vector<pipeline::StageSum>> stage_sums();
  /// What the ranks of a pipeline found in each step, which all of them have, becomes the sums over all ranks.
  void sum_over_pipelines(std::span<std::vector<nn::LossTerm>> losses, std::span<double> flops);

 private:
  void plan_chunks(const spec::ModelShape& shape, models::BuildOptions& build, int chunks);
  std::map<int, Engine::Passes> passes() const;
  void count_boundaries(Engine::Account& account) const;
  void form_wave_groups(const schedule::Schedule& table, const models::BuildOptions& build);
  using Look = std::function<void(int chunk, const nn::Tensors& outputs)>;
  pipeline::Executor& executor_for(int micros);
  void execute_forward(pipeline::Micro& micro, const Look& look);

  const spec::Recipe& recipe_;
  comm::Group& world_;
  std::unique_ptr<ParallelGroups> parallel_groups_;
  comm::Group& pipeline_;
  nn::LossReducer loss_reducer_;
  LayerDropping dropping_;
  Share share_;
  PipelineCut cut_;
  std::vector<int> mixtures_;  // by chunk, where rows travel between ranks and a step's pairs are in parts
  pipeline::Stage stage_;
  std::unique_ptr<Teacher> teacher_;  // of [distill], where the head is
  /// Where virtual workers have splits of their own: the ranks that have a parameter, one of each, by their stages.
  std::map<std::vector<int>, std::unique_ptr<comm::Group>> wave_groups_;
  std::map<std::string, std::vector<int>> wave_stages_;  // of this rank's parameters: by virtual worker
  std::unique_ptr<parallel::DataParallel> data_parallel_;
  std::vector<std::unique_ptr<comm::Group>> tied_groups_;  // of first_micro()
  std::vector<int> holders_;                               // by chunk: the first rank of the pipeline that holds it
  std::map<int, schedule::Schedule> tables_;               // by micros of a step
  std::unique_ptr<pipeline::WeightPredictor> unchanged_;
  std::unique_ptr<pipeline::Executor> executor_;
  int executor_micros_ = 0;
  bool halves_micros_ = false;  // the table sends them back in parts
  bool experts_lead_ = true;    // in every step, the first micro-batch adds to a gradient before others
  int loss_terms_ = 1;          // of the step that was executed last
  QueueMeter receives_, activations_;
  std::unique_ptr<pipeline::TimelineRecorder> record_;  // of executor_
};

/// Whether the recipe's pipeline stays full from one step to the next.
bool runs_several_steps(const spec::Recipe& recipe);
/// The seconds that an execution spent in passes of layers.
double busy_seconds(const pipeline::RunReport& report);

/// What is the same for both kinds of engine.
template <typename Kind>
class PipelineEngineOf : public Kind {
 public:
  explicit PipelineEngineOf(std::unique_ptr<StagedModel> staged) : staged_(std::move(staged)) {
    this->parts_ = staged_->parts();
  }
  Engine::Account account() final { return staged_->account(); }
  parallel::FirstMicroOptions first_micro() final { return staged_->first_micro(); }
  std::optional<QueueReading> receives() final { return staged_->receives().read(); }
  std::optional<QueueReading> activations() final { return staged_->activations().read(); }
  std::string timeline() final { return staged_->timeline(); }
  Evaluation evaluate(const data::Samples& samples, const EvaluateOptions& options) final {
    return staged_->evaluate(samples, options);
  }
  std::string first_not_finite(std::vector<data::Batch>& batches, const MakeContext& contexts) final {
    return staged_->first_not_finite(batches, contexts);
  }

 protected:
  std::unique_ptr<StagedModel> staged_;
};

/// The engine of schedules that update while micros are on their way, and of steps that are validated after the fact.
/// ConfigErrors where the recipe asks for what cannot be done between drains.
std::unique_ptr<MultiStepEngine> make_pipeline_steps(std::unique_ptr<StagedModel> staged);

}  // namespace trireme::train
