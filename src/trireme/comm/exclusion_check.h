// comm/exclusion_check.h -- every way in which a few ranks can run Lamport's mutual exclusion, tried.
//
// A state is all processes and all messages under way; a step is a request, an entry, a release, or the arrival of one
// message. The search visits every state that can be reached and looks at each for what must never be: two ranks
// inside, an entry out of the order of clocks, an end in which somebody still waits. Steps only ever use up entries and
// messages, so no run goes on for ever: that every end is a good one is liveness.
// Depends on: exclusion.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/exclusion.h"

namespace trireme::comm {

struct ExclusionSearch {
  std::vector<int> entries = {1, 1};  ///< of each rank; one with none only answers
  bool ordered = true;                ///< channels keep their order; false: any message under way may arrive next
  /// When a rank goes in: ExclusionProcess::may_enter, or what a test would have instead.
  std::function<bool(const ExclusionProcess&)> may_enter = &ExclusionProcess::may_enter;
  std::int64_t most_states = 20'000'000;
};

struct ExclusionReport {
  std::int64_t states = 0, ends = 0;
  std::int64_t messages = 0;       ///< of one run; the same for all
  bool complete = false;           ///< every state was visited
  std::string problem;             ///< the first that was found; empty: none
  std::vector<std::string> steps;  ///< that lead there
};

/// Stops at the first problem.
ExclusionReport explore_exclusion(const ExclusionSearch& search);

}  // namespace trireme::comm
