// experiment/simulate.h -- a search over stored learning curves, with simulated workers: what it would cost and find.
//
// Nothing is trained: a curve says the loss of a trial at a step. So a search is compared with another on the results
// of a sweep that was run once, and its behaviour with many, slow or failing workers is a test of milliseconds.
// Depends on: search.
#pragma once

#include <functional>

#include "trireme/experiment/search.h"

namespace trireme::experiment {

struct SimulateOptions {
  /// The loss of a setting after so many steps.
  std::function<double(const Setting& setting, std::int64_t step)> curve;
  int workers = 1;
  /// How much longer a worker takes than one time unit a step; empty: all as fast.
  std::function<double(int worker)> slowness = {};
  /// Whether a job ends with a crash, after half of its steps.
  std::function<bool(const Job& job)> fails = {};
  /// Called after each result with the steps trained so far; true: end the search here.
  std::function<bool(const Journal& journal, std::int64_t steps)> enough = {};
};

struct Simulated {
  Journal journal;
  std::int64_t steps = 0;  ///< trained, over all workers
  double time = 0;         ///< when the last job ended; one step takes one unit
};

Simulated simulate(Search& search, const SimulateOptions& options);

}  // namespace trireme::experiment
