// schedule/memory.h -- what a rank holds at most while it executes its list. No times are needed: what a rank holds
// changes with its own instructions only.
//
// Depends on: schedule.
#pragma once

#include <vector>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

/// Of one chunk, and of one micro in it, in any unit.
struct Sizes {
  double activation = 1;   // from a forward until its backward
  double for_weights = 1;  // of that, what a backward of inputs leaves for the backward of weights
  double input = 0;        // held instead of the activation until it is recomputed
  double weights = 0;      // of each version and prediction
};

/// The most at any time, by rank.
std::vector<double> peak_memory(const Schedule& schedule, const Sizes& sizes);

/// Micros between their forward and the end of their backward, over all chunks of the rank: the most at any time.
std::vector<int> peak_in_flight(const Schedule& schedule);

}  // namespace trireme::schedule
