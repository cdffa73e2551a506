// cli/start_ranks.h -- runs a command's body on its ranks, wherever the recipe and the launcher say they are.
//
// Threads of this process; or processes: those that mpirun or srun started, or, when MPI was asked for and nobody
// started anything, this program again under mpirun.
// Depends on: comm, spec.
#pragma once

#include <functional>

#include "trireme/comm/rank.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {

/// Throws what the body threw; with processes, a rank that fails prints its error and ends the process instead.
void start_ranks(const spec::Recipe& recipe, const std::function<void(comm::Rank&)>& body);

/// The recipe's settings for the comm room, with the costs of TRIREME_COMM_COSTS or of the cache folder.
comm::CommOptions comm_options(const spec::Recipe& recipe);

/// Where measured costs are kept: TRIREME_COMM_COSTS, else comm-costs.toml in the user's cache folder.
std::string costs_path();

}  // namespace trireme::cli
