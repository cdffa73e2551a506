// train/engine/pipeline_steps.h -- several steps of a pipeline in one walk of a table: schedules that update while
// micros are on their way, and steps that are validated after the fact.
//
// Asynchronous: each rank updates when the table says, with the norm of its own stage alone. Others: each updates at
// once as if nothing had to be clipped and goes on with the next step; where the norm over all stages says otherwise,
// it goes back (pipeline/post_validation.h).
// Depends on: base, comm, pipeline, schedule, train.
#pragma once

#include <functional>
#include <memory>

#include "trireme/comm/group.h"
#include "trireme/pipeline/executor.h"
#include "trireme/pipeline/post_validation.h"
#include "trireme/train/engine/multi_step_engine.h"

namespace trireme::spec {
struct Recipe;
}

namespace trireme::train {

class PipelineSteps final : public MultiStepEngine {
 public:
  /// All borrowed. ConfigErrors where the recipe asks for what cannot be done between drains.
  using MakeTable = std::function<schedule::Schedule(int micros, int steps)>;
  PipelineSteps(const spec::Recipe& recipe, pipeline::Stage& stage, comm::Group& pipeline, comm::Group& copies,
                parallel::DataParallel& data_parallel, MakeTable make_table);

  std::int64_t drain_every() const override { return drain_every_; }
  std::vector<StepMade> run_steps(const StepsRequest& request) override;

 private:
  /// What walks a table of so many steps of so many micros.
  struct Walk {
    int micros = 0, steps = 0;
    schedule::Schedule table;
    std::unique_ptr<pipeline::WeightPredictor> predictor;
    std::unique_ptr<pipeline::Executor> executor;
    std::unique_ptr<pipeline::PostValidatedUpdate> optimistic;
  };
  class Progress;
  Walk& walk_for(const StepsRequest& request);

  pipeline::Stage& stage_;
  comm::Group& pipeline_;
  comm::Group& copies_;  // of the pipeline
  c10::Device device_;
  parallel::DataParallel& data_parallel_;
  bool asynchronous_;
  std::int64_t drain_every_;
  MakeTable make_table_;
  Progress* progress_ = nullptr;  // of the call that is running
  Walk walk_;
};

}  // namespace trireme::train
