// plan/graph/search/flexflow.h -- FlexFlow (Jia 2019, 1807.05358): Metropolis search over simulated task graphs.
//
// A strategy becomes a task graph: forward and backward of every operator on the device, conversions between operators
// and reductions of gradients on the network, each queue first in, first out by the time at which a task is ready (ties
// by its number). Communication overlaps with computation, which additive costs do not see. All devices of a mesh do
// the same at the same time, so one of them is simulated. A proposal changes one node; delta simulation keeps the tasks
// that ran before the first one that changed and replays the rest. It is the full simulation, bit for bit.
// Depends on: cost_table, conversion_prices.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "trireme/plan/graph/search/conversion_prices.h"
#include "trireme/plan/graph/search/cost_table.h"

namespace trireme::plan::graph {

/// Tasks on two queues, device and network. What depends on what is fixed; durations change.
class TaskSimulator {
 public:
  struct Task {
    bool on_network = false;
    std::vector<int> after;  ///< tasks that must have ended
  };
  explicit TaskSimulator(std::vector<Task> tasks);

  /// Everything from the start. Returns when the last task ends.
  double full(const std::vector<double>& seconds);
  /// The same for durations of which only those of `changed` differ from the accepted ones. Gives up with infinity once
  /// it is certain that the result is above `at_most`.
  double delta(const std::vector<double>& seconds, const std::vector<int>& changed,
               double at_most = std::numeric_limits<double>::infinity());
  /// The last delta becomes what the next one starts from. Not after one that gave up.
  void accept();
  double makespan() const { return accepted_.makespan; }
  /// [task] when it ends, as accepted.
  const std::vector<double>& ends() const { return accepted_.end; }

 private:
  struct Run {
    std::vector<double> end;
    std::vector<int> order, position;         ///< tasks as they were started, and where each stands
    std::vector<std::array<double, 2>> free;  ///< [position] when the queues are free before it
    double makespan = 0;
  };
  double replay(const std::vector<double>& seconds, Run& run, std::size_t from, double at_most);

  std::vector<Task> tasks_;
  std::vector<std::vector<int>> then_;
  Run accepted_, tried_;
  std::size_t from_ = 0;
  std::vector<int> waiting_;  // of a replay
  std::vector<double> ready_;
};

struct FlexFlowOptions {
  int proposals = 20'000;
  double seconds = 30;
  double memory_bytes = 0;  ///< 0: no limit
  std::uint64_t seed = 0;
  double temperature = 0.002;  ///< a proposal that is slower by this share is accepted with probability 1/e
};

struct FlexFlowResult {
  Assignment assignment;
  double simulated = 0;  ///< seconds of a step with overlap
  double start = 0;      ///< of the best strategy it started from
  int proposals = 0, accepted = 0;
  double seconds = 0;  ///< of the search
};

/// The task graph of a graph's problem.
class FlexFlow {
 public:
  FlexFlow(const Graph& both, const Pricing& pricing, const GraphProblem& problem);
  ~FlexFlow();

  /// Simulated from the start, tasks built anew: what delta simulation must equal.
  double simulate(const Assignment& assignment);
  /// Makes an assignment the one that proposals are made to.
  double start(const Assignment& assignment);
  /// With one node changed; gives up above `at_most`. accept() keeps it.
  double propose(int node, int choice, double at_most = std::numeric_limits<double>::infinity());
  void accept();
  const Assignment& assignment() const;

  FlexFlowResult search(const std::vector<Assignment>& starts, const FlexFlowOptions& options);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::plan::graph
