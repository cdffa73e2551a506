// cli/ps_nodes.h -- what `trireme ps lasso` and `lbfgs` share: nodes over mailboxes, as threads here or on ranks that
// are processes; the weights they save.
//
// Node a is address a. On ranks it runs on rank a modulo their number, on a thread of its own; their mailboxes go over
// what carries collectives, MPI or UCX.
// Depends on: comm.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>

#include "trireme/cli/command.h"
#include "trireme/comm/mailbox.h"

namespace trireme::cli {

struct PsNodeOptions {
  int ranks = 0;  ///< processes; 0: threads, or the ranks that a launcher started
  std::string transport = "auto";
  std::int64_t seed = -1;  ///< of deliveries, one thread at a time; below 0: as they come
};
void add_ps_node_options(Command& command, PsNodeOptions& options);

/// Throws what a node threw; of ranks the failing one prints it and ends.
void run_ps_nodes(int count, const PsNodeOptions& options, const std::function<void(comm::Mailbox&)>& body);

/// For --save: a line "INDEX WEIGHT", from 1, for each weight that is not 0. Says where to on `out`.
void save_weights(std::span<const double> weights, const std::filesystem::path& file, std::ostream& out);

}  // namespace trireme::cli
