// schedule/replicated.h -- 1F1B over stages that run on several ranks each (PipeDream's replicated stages).
//
// A stage on r ranks deals its micros out in turn, so a slow stage keeps up with fast ones. In the table such a stage
// is a chunk that several ranks hold, one on each route that micros take; their gradients are reduced like those of any
// copies.
// Depends on: schedule.
#pragma once

#include <span>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

/// One chunk a stage, on `ranks_of_stage[s]` ranks each, numbered stage by stage; one step with a flush. Without
/// updates and transfers (passes.h adds them). ConfigError where a rank would have no micro.
Schedule replicated_1f1b(std::span<const int> ranks_of_stage, int micros);

}  // namespace trireme::schedule
