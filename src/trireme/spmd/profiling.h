// spmd/profiling.h -- measures operators and conversions one by one, on all ranks at once: the profile that searches
// and predictions price with (plan/graph/profile.h).
//
// Each is run on blocks as a rank has them under its split, with drawn numbers, several times; what computes the same
// as one before is not measured again. Nothing is exchanged for halos and statistics: those are priced, not computed.
// Depends on: transfers, ops/kernel, plan/graph/profile.
#pragma once

#include "trireme/comm/rank.h"
#include "trireme/spmd/commands.h"

namespace trireme::spmd {

/// Called by every rank at the same time; all of them get the same profile: medians, the mean over ranks.
plan::graph::OperatorProfile profile_operators(const ProfileRequest& request, comm::Rank& rank);

}  // namespace trireme::spmd
