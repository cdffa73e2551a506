// comm/routine_matching.h -- which receive each send of a set of routines belongs to, and the other way round.
//
// Messages between two ranks match in the order they were posted, so this needs no execution. Checker and replay share
// it. Depends on: comm/routine.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/comm/routine.h"

namespace trireme::comm {

struct Matching {
  std::vector<std::vector<int>> partner;  // [rank][step]: the step of steps[step].peer; -1 for other steps
  std::vector<std::string> faults;        // messages without a partner or of different lengths
};
Matching match_messages(std::span<const Routine> routines);

/// "rank 1, step 3 (send out[0,8) to 0)"
std::string place(int rank, int index, const Step& step);

}  // namespace trireme::comm
