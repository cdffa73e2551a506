// schedule/replicated.h -- 1F1B over stages that run on several ranks each (PipeDream's replicated stages).
//
// A stage on r ranks deals its micros out in turn (1F1B-RR), so a slow stage keeps up with fast ones; a micro goes back
// over the ranks that it came by. In the table such a stage is a chunk that several ranks hold, one on each route that
// micros take; their gradients are reduced like those of any copies.
// Depends on: schedule, versions.
#pragma once

#include <span>
#include <vector>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

/// By stage: its ranks, in the order in which they take micros. Every rank of the pipeline is there once.
using StageRanks = std::vector<std::vector<int>>;

/// So many ranks for each stage, numbered stage by stage.
StageRanks stage_ranks(std::span<const int> counts);

/// One chunk a stage; one step with a flush. Without updates and transfers (passes.h adds them). ConfigError where a
/// rank would have no micro.
Schedule replicated_1f1b(const StageRanks& stages, int micros);

/// The same without a flush (Narayanan et al. 2019, section 3.2): an update after every `micros` micros, each backward
/// with the weights that its forward met. Updates and stashes are there, transfers are not. Ranks of a stage reduce
/// their gradients for each update, so that they have the same versions one after the other.
Schedule replicated_pipedream(const StageRanks& stages, int micros, int steps, bool recompute = false);

}  // namespace trireme::schedule
