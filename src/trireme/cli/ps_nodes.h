// cli/ps_nodes.h -- runs the nodes of an algorithm over mailboxes: as threads here, or on ranks that are processes.
//
// Node a is address a. On ranks it runs on rank a modulo their number, on a thread of its own; their mailboxes go over
// what carries collectives, MPI or UCX.
// Depends on: comm.
#pragma once

#include <cstdint>
#include <functional>
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

}  // namespace trireme::cli
