// train/run/stragglers.h -- which ranks compute longer than the others, over the last steps.
//
// Depends on: comm.
#pragma once

#include <vector>

#include "trireme/comm/group.h"

namespace trireme::train {

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

}  // namespace trireme::train
