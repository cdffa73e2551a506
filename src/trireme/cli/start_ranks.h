// cli/start_ranks.h -- runs a command's body on its ranks, wherever the recipe and the launcher say they are.
//
// Threads of this process; or processes: those that mpirun, srun or torchrun started, or, when MPI or UCX was asked for
// and nobody started anything, this program again, under mpirun or as processes of this machine.
// Depends on: comm, spec.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trireme/comm/rank.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {

/// Throws what the body threw; with processes, a rank that fails prints its error and ends the process instead.
/// `costs` is as in comm_options().
void start_ranks(const spec::Recipe& recipe, const std::function<void(comm::Rank&)>& body,
                 const std::optional<std::string>& costs = std::nullopt);

/// For a member of an elastic world (comm/elastic_member.h), whose ranks are processes over UCX.
comm::RanksOptions member_ranks_options(const spec::Recipe& recipe, const std::optional<std::string>& costs);

/// The recipe's settings for the comm room, with the costs of this file; none: of TRIREME_COMM_COSTS or of the cache
/// folder. Costs decide which algorithm a collective takes, and so the order of its sums: a run keeps its own.
comm::CommOptions comm_options(const spec::Recipe& recipe, const std::optional<std::string>& costs = std::nullopt);

/// Where measured costs are kept: TRIREME_COMM_COSTS, else comm-costs.toml in the user's cache folder.
std::string costs_path();

}  // namespace trireme::cli
