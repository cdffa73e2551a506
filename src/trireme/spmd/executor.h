// spmd/executor.h -- one rank's part of a graph that runs with a strategy.
//
//   Executor executor(both, strategy, world, {});            // on every rank: makes groups, checks the strategy
//   StepResult result = executor.step(start_values(both, seed));
//
// A step walks the graph with its gradient operators in order: what the lowering inserts before an operator, the
// operator on this rank's blocks, and what is read no more is freed. There is no second plan: links, conversions and
// exchanges are those of plan/graph, and what was carried out comes back to be held against the list.
// Depends on: transfers, ops/kernel, values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/plan/graph/strategy.h"
#include "trireme/spmd/values.h"

namespace trireme::spmd {

struct ExecutorOptions {
  std::uint64_t seed = 0;    ///< of dropout
  double learning_rate = 0;  ///< plain gradient descent after each step; 0: parameters stay
};

struct StepResult {
  double loss = 0;                     ///< the sum of all losses, the same on every rank
  Values gradients;                    ///< [tensor] this rank's blocks, of parameters; they lie as their parameters do
  std::vector<pg::Inserted> executed;  ///< in order, slices too; of a halo what this rank received
  double peak_bytes = 0;               ///< of all blocks at once; parameters included
};

class Executor {
 public:
  /// ConfigError that names what a graph or a strategy has that cannot run. Called by every rank at the same time.
  Executor(const pg::Graph& both, const pg::Strategy& strategy, comm::Group& world, const ExecutorOptions& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// What the lowering lists: to be printed before anything runs.
  const pg::Lowering& lowering() const;
  /// Takes this rank's blocks of the parameters; other steps go on with them.
  void load(const Values& start);
  /// Inputs are those of `start`.
  StepResult step(const Values& start);
  /// Where this rank's block of a parameter lies.
  Place parameter_place(int tensor) const;
  at::Tensor parameter(int tensor) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::spmd
