// Strategies of a graph on thread ranks, each held against the whole graph under autograd and against its own list.
#pragma once

#include <ATen/Parallel.h>

#include <mutex>
#include <string>
#include <vector>

#include "trireme/comm/rank.h"
#include "trireme/spmd/executor.h"
#include "trireme/spmd/verify.h"

namespace trireme::spmd {

struct Outcome {
  double loss = 0, expected = 0, worst = 0;
  std::string parameter;
  std::size_t compared = 0;
  std::vector<std::string> deviations;
  bool has_halo = false;
};

/// One step of each, from the same start; all of them have meshes of as many ranks.
inline std::vector<Outcome> run_strategies(const pg::Graph& both, const std::vector<pg::Strategy>& strategies,
                                           const Values& start, const Reference& reference, bool fused_images = false) {
  std::vector<Outcome> outcomes(strategies.size(), {.expected = reference.loss});
  const int ranks = strategies[0].mesh.ranks();
  std::vector<std::vector<std::vector<pg::Inserted>>> executed(strategies.size());
  for (auto& of : executed) of.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    at::set_num_threads(1);  // ranks are as many threads as there are cores, and more
    for (std::size_t i = 0; i < strategies.size(); ++i) {
      Executor executor(both, strategies[i], rank.world(), {.seed = 5, .fused_images = fused_images});
      executor.load(start);
      StepResult result = executor.step(start);
      const Deviation deviation = compare(both, executor, result, reference);
      const std::scoped_lock lock(mutex);
      Outcome& outcome = outcomes[i];
      executed[i][static_cast<std::size_t>(rank.rank())] = std::move(result.executed.at(0));
      if (rank.rank() == 0) outcome.loss = result.loss;
      outcome.compared = deviation.compared;
      if (deviation.worst >= outcome.worst) outcome.worst = deviation.worst, outcome.parameter = deviation.parameter;
    }
  });
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    const pg::Lowering lowering = lower(both, strategies[i]);
    outcomes[i].deviations = compare_collectives(both, strategies[i], lowering, executed[i]);
    for (const pg::Inserted& one : lowering.inserted)
      outcomes[i].has_halo = outcomes[i].has_halo || one.step.kind == pg::StepKind::kHalo;
  }
  return outcomes;
}

inline Outcome run_once(const pg::Graph& both, const pg::Strategy& strategy, const Values& start,
                        const Reference& reference) {
  return run_strategies(both, {strategy}, start, reference)[0];
}

}  // namespace trireme::spmd
