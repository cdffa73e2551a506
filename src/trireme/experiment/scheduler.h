// experiment/scheduler.h -- who gets which slots now: a pure function of the queue, the nodes and what runs.
//
// Gang scheduling: a task gets all its slots at once or none, on one node where it fits on one (best fit), else on
// whole empty nodes. Order of the queue: priority; then weighted max-min fair share, the experiment with fewest slots
// for its weight first; then age. The first that does not fit, the head, holds a reservation for when enough slots will
// be free; tasks behind it are backfilled only where they leave that moment as it is (EASY backfilling: Lifka 1995). A
// head may preempt tasks of lower priority, and of experiments above their fair share; they save a checkpoint first.
// Depends on: base.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace trireme::experiment {

inline constexpr double kUnknownTime = std::numeric_limits<double>::infinity();

/// Of one node, by its place in Cluster::nodes.
struct Grant {
  int node = 0, slots = 0;
  bool operator==(const Grant&) const = default;
};
using Grants = std::vector<Grant>;

struct Task {
  int id = 0;
  int experiment = 0;  ///< place in SchedulerState::weights
  int slots = 1;
  int priority = 0;               ///< higher first
  std::int64_t submitted = 0;     ///< lower first
  double seconds = kUnknownTime;  ///< it will still take
  Grants grants = {};             ///< empty: queued
  bool ending = false;            ///< was asked to save and stop
};

struct SchedulerState {
  std::vector<int> nodes;       ///< slots of each
  std::vector<double> weights;  ///< of each experiment
  std::vector<Task> tasks;      ///< queued and running
};

struct Decision {
  struct Start {
    int task = 0;
    Grants grants;
    bool backfilled = false;
    bool operator==(const Start&) const = default;
  };
  std::vector<Start> start;
  std::vector<int> preempt;     ///< tasks to ask for a checkpoint and their slots
  std::vector<int> impossible;  ///< tasks that would not fit on the whole cluster when it is empty
  bool operator==(const Decision&) const = default;
};

/// InternalError where running tasks hold more than there is.
Decision decide(const SchedulerState& state);

/// Weighted max-min fair shares of `capacity`: nobody gets more than it asks for, what one leaves goes to the others by
/// their weights.
std::vector<double> fair_shares(double capacity, const std::vector<double>& demands,
                                const std::vector<double>& weights);

/// Slots for a gang on these free slots of nodes with so many each; empty: it does not fit.
Grants place_gang(int slots, const std::vector<int>& free, const std::vector<int>& nodes);

}  // namespace trireme::experiment
