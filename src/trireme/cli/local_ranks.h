// cli/local_ranks.h -- this program again, once for each rank, as processes of this machine that meet without MPI.
//
// The ranks get torchrun's variables, a free port of the loopback interface and a token of their own, which dies with
// them. What one prints, all print; the first that fails ends the others.
// Depends on: base.
#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

/// Ends this process with the first rank's status that is not 0. Returns only by throwing.
[[noreturn]] void become_local_ranks(int ranks, const std::vector<std::string>& command_line);

}  // namespace trireme::cli
