// train/run/step_status.h -- what ranks tell each other after every step, in one small sum.
//
// Depends on: comm.
#pragma once

#include <cstdint>

#include "trireme/comm/group.h"

namespace trireme::train {

/// A rank's own; of all ranks: the largest of each.
struct StepStatus {
  std::int64_t stop = 0;     ///< somebody was asked to
  std::int64_t memory = 0;   ///< bytes, at most so far
  std::int64_t save = 0;     ///< rank 0's clock says so, or SIGUSR1 on any rank
  std::int64_t writing = 0;  ///< a checkpoint is not yet written
  std::int64_t clock = 0;    ///< the timeline's
};

/// On all ranks together.
StepStatus exchange(const StepStatus& status, comm::Group& world);

/// Rank 0's number, on every rank.
std::int64_t told(std::int64_t number, comm::Group& world);

}  // namespace trireme::train
