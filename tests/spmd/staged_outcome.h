// A plan with pipeline stages on thread ranks, held against the whole graph under autograd and against its own list.
#pragma once

#include <ATen/Parallel.h>

#include <mutex>
#include <string>
#include <vector>

#include "trireme/comm/rank.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/spmd/pipeline.h"
#include "trireme/spmd/verify.h"

namespace trireme::spmd {

struct StagedOutcome {
  double loss = 0, worst = 0, peak_bytes = 0;
  std::string parameter;
  std::size_t compared = 0;  // over all stages
  std::vector<std::string> deviations;
};

/// One step on thread ranks.
inline StagedOutcome run_staged_once(const pg::Graph& forward, const pg::StagedPlan& plan, const Values& start,
                                     const Reference& reference) {
  StagedOutcome outcome;
  std::mutex mutex;
  std::vector<std::vector<std::vector<std::vector<pg::Inserted>>>> executed(plan.stages.size());  // stage, micro, rank
  for (auto& micros : executed) micros.resize(static_cast<std::size_t>(plan.micros));
  comm::run_ranks(plan.ranks(), [&](comm::Rank& rank) {
    at::set_num_threads(1);
    PipelineExecutor pipeline(forward, plan, rank.world(), {.seed = 5});
    pipeline.load(start);
    StepResult result = pipeline.step(start);
    const Deviation deviation = compare(pipeline.stage().graph, pipeline.executor(), result, reference);
    std::size_t stage = 0;
    while (stage + 1 < plan.stages.size() && plan.first_rank(stage + 1) <= rank.rank()) ++stage;
    const std::scoped_lock lock(mutex);
    for (std::size_t micro = 0; micro < result.executed.size(); ++micro)
      executed[stage][micro].push_back(std::move(result.executed[micro]));
    if (rank.rank() == plan.first_rank(stage)) outcome.compared += deviation.compared;
    outcome.loss = result.loss;
    outcome.peak_bytes = std::max(outcome.peak_bytes, result.peak_bytes);
    if (deviation.worst >= outcome.worst) outcome.worst = deviation.worst, outcome.parameter = deviation.parameter;
    for (const std::string& what : pipeline.deviations()) outcome.deviations.push_back(what);
  });
  const pg::StagedGraph staged = stage_graphs(micro_graph(with_backward(forward), plan.micros).graph, plan);
  for (std::size_t s = 0; s < staged.stages.size(); ++s) {
    const pg::Stage& stage = staged.stages[s];
    for (const auto& ranks : executed[s]) {
      for (const std::string& what :
           compare_collectives(stage.graph, stage.strategy, lower(stage.graph, stage.strategy), ranks))
        outcome.deviations.push_back(what);
    }
  }
  return outcome;
}

}  // namespace trireme::spmd
