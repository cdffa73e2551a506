// train/run/rank_watch.h -- looks after the ranks of a run: what they tell each other after every step, which of
// them are slow, and whether copies of the state are still the same.
//
// All ranks call everything together.
// Depends on: comm, health, run_writer.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/train/run/run_writer.h"

namespace trireme::train {

// What ranks tell each other after every step, in one small sum.

/// A rank's own; of all ranks: the largest of each.
struct StepStatus {
  std::int64_t stop = 0;     ///< somebody was asked to
  std::int64_t memory = 0;   ///< bytes, at most so far
  std::int64_t save = 0;     ///< rank 0's clock says so, or SIGUSR1 on any rank
  std::int64_t writing = 0;  ///< a checkpoint is not yet written
  std::int64_t clock = 0;    ///< the timeline's
  std::int64_t edge = 0;     ///< an elastic world is to end here
};

/// On all ranks together.
StepStatus exchange(const StepStatus& status, comm::Group& world);

/// Rank 0's number, on every rank.
std::int64_t broadcast_from_root(std::int64_t number, comm::Group& world);

/// Which ranks compute longer than the others, over the last steps.
struct SlowRank {
  int rank = 0;
  double times = 1;  ///< of what the median rank takes
};

class Stragglers {
 public:
  /// Ranks that take `factor` times the median are slow; 0: nobody is asked. `world` is borrowed.
  Stragglers(comm::Group& world, double factor, int window = 20) : world_(world), factor_(factor), window_(window) {}

  /// After each step, on all ranks together: what this rank computed for. Gives the slow ones once a window.
  std::vector<SlowRank> note(double seconds);

 private:
  comm::Group& world_;
  double factor_;
  int window_, steps_ = 0;
  double sum_s_ = 0;
};

/// The ranks whose time is at least `factor` times the median; of two ranks, times the faster one.
std::vector<SlowRank> slow_ranks(const std::vector<double>& seconds, double factor);

class RankWatch {
 public:
  /// All are borrowed.
  RankWatch(const spec::HealthConfig& health, comm::Group& world, RunWriter& files, observe::Timeline& timeline)
      : health_(health), world_(world), files_(files), timeline_(timeline), stragglers_(world, health.straggler) {}

  /// After step `step`, for which this rank computed so long.
  void note(std::int64_t step, double compute_s);
  /// Where the recipe asks for it after this step and the trainer is at rest. Throws when copies differ.
  void compare(std::int64_t step, Trainer& trainer);

 private:
  const spec::HealthConfig& health_;
  comm::Group& world_;
  RunWriter& files_;
  observe::Timeline& timeline_;
  Stragglers stragglers_;
  std::int64_t agreed_step_ = 0;
};

}  // namespace trireme::train
