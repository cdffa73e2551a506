// comm/transports/threads.h -- ranks are threads of one process: messages are pointers, and the receiver takes the data
// itself.
//
// A short message is copied once on its way, so that its sender need not wait; of a long one the receiver reads the
// sender's memory.
// Depends on: transport.h, board.h.
#pragma once

#include <memory>
#include <vector>

#include "trireme/comm/transport.h"

namespace trireme::comm {

/// The endpoints of `ranks` threads, entry r for rank r. `ranks_per_node` 0: all on one node; otherwise they pretend to
/// be on several (for the hierarchical algorithms).
std::vector<std::unique_ptr<Transport>> make_threads_transport(int ranks, int ranks_per_node = 0);

}  // namespace trireme::comm
