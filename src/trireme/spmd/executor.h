// spmd/executor.h -- one rank's part of a graph, or of a pipeline stage of one, that runs with a strategy.
//
//   Executor executor(both, strategy, world, {});            // on every rank: makes groups, checks the strategy
//   StepResult result = executor.step(start_values(both, seed));
//
// A step walks the graph with its gradient operators in order: what the lowering inserts before an operator, the
// operator on this rank's blocks, and what is read no more is freed. There is no second plan: links, conversions and
// exchanges are those of plan/graph, and what was carried out comes back to be held against the list. A stage runs its
// micro-batches one by one, forward and backward as a schedule says, and updates after the last (pipeline.h).
// Depends on: transfers, lifetimes, ops/kernel, descent, values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/plan/graph/strategy.h"
#include "trireme/spmd/commands.h"
#include "trireme/spmd/transfers.h"
#include "trireme/spmd/values.h"

namespace trireme::spmd {

/// What a stage exchanges with others while its operators run.
class Neighbours {
 public:
  virtual ~Neighbours() = default;
  /// This rank's block of a tensor that another stage makes.
  virtual at::Tensor receive(int tensor, int micro, const Place& place) = 0;
  /// An operator has made this block; whoever needs it gets it.
  virtual void made(int tensor, int micro, const Block& block, Transfers& transfers) = 0;
  /// Parameters that other stages hold too: their gradients become the sums over stages.
  virtual void sum_gradients(Values& gradients) = 0;
  /// Sets of mesh axes along which made() converts.
  virtual std::vector<pg::MeshAxes> axes() const = 0;
};

struct ExecutorOptions {
  std::uint64_t seed = 0;            ///< of dropout
  DescentOptions descent = {};       ///< after each step; a learning rate of 0: parameters stay
  int micros = 1;                    ///< micro-batches of a step
  std::vector<int> micro_dims = {};  ///< dimensions that micro-batches divide: dropout draws by the index in the batch
  bool defer_loss = false;           ///< leave it on its device: one rank, whose step a CUDA graph can then capture
  bool fused_images = false;         ///< on a GPU: batch norm, sums and ReLU as one (norm_tails.h), our max pooling
  Neighbours* neighbours = nullptr;  ///< of a pipeline stage; outlives the executor
};

struct StepResult {
  at::Tensor loss_value;  ///< with defer_loss: the sum over micro-batches, where it was computed
  double loss = 0;        ///< the sum of all losses, the same on every rank of the graph or stage
  Values gradients;       ///< [tensor] this rank's blocks, of parameters; they lie as their parameters do
  /// [micro-batch] in order, slices too, with the update's at the end; of a halo what this rank received.
  std::vector<std::vector<pg::Inserted>> executed;
  double peak_bytes = 0;  ///< of all blocks at once; parameters included
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
  /// Inputs are those of `start`. The same as forward, backward and update of one micro-batch.
  StepResult step(const Values& start);

  /// Of one micro-batch, whose inputs must stay until its backward.
  void forward(int micro, const Values& inputs);
  void backward(int micro);
  /// The same in two parts, where gradients of weights stand last in the graph (splits_backward() of a plan): what
  /// other stages wait for, and the rest at any later time.
  void backward_input(int micro);
  void backward_weight(int micro);
  /// After every micro-batch of a step: the mean of their gradients and losses.
  StepResult update();

  /// Whether this graph or stage reads the parameter.
  bool holds(int tensor) const;
  /// Where this rank's block of a parameter lies.
  Place parameter_place(int tensor) const;
  at::Tensor parameter(int tensor) const;
  /// Of batch norms: of the mini-batch of each step, all its micro-batches together (GPipe's deferred batch norm).
  const RunningStatistics& statistics() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::spmd
