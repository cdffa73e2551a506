// spmd/pipeline.h -- a graph in pipeline stages: each rank runs its part of its stage, micro-batch by micro-batch, in
// the order of a schedule.
//
//   PipelineExecutor pipeline(graph, plan, world, {});       // on every rank
//   pipeline.load(start);
//   StepResult result = pipeline.step(start);                // gradients of the parameters of this rank's stage
//
// The schedule is a table of schedule/builders.h; what goes between stages are the plan's deliveries, sent as soon as
// they are made and received when they are first read. Sends never wait, so whatever order the table has, it runs.
// Depends on: executor, plan/graph/staged, schedule.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/plan/graph/staged.h"
#include "trireme/spmd/executor.h"

namespace trireme::spmd {

class PipelineExecutor {
 public:
  /// `forward`: the graph of the whole batch. ConfigError that lists what is wrong with the plan. Called by every rank
  /// at the same time. Of the options micros, dimensions and neighbours are the plan's.
  PipelineExecutor(const pg::Graph& forward, const pg::StagedPlan& plan, comm::Group& world,
                   const ExecutorOptions& options);
  ~PipelineExecutor();
  PipelineExecutor(const PipelineExecutor&) = delete;
  PipelineExecutor& operator=(const PipelineExecutor&) = delete;

  void load(const Values& start);
  /// Inputs are those of `start`, of the whole batch. The loss is that of all stages.
  StepResult step(const Values& start);

  const Executor& executor() const;
  const pg::Stage& stage() const;
  /// Ranks of this rank's stage.
  comm::Group& stage_ranks();
  /// Messages to other stages in a step, and their bytes, of all ranks: what the plan lists.
  std::size_t listed_messages() const;
  double listed_bytes() const;
  /// Where what this rank sent in the last step is not what the plan lists; empty: to the byte.
  std::vector<std::string> deviations() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::spmd
