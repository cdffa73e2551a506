// comm/mpi_plugin/mpi_plugin.h -- what libtrireme_mpi offers to the rooms that know no MPI.
// Depends on: transport.h.
#pragma once

#include <cstddef>

namespace trireme::comm {
class Transport;
}

extern "C" {
/// Starts MPI if nobody has, and returns this process's endpoint; the caller owns it. Throws CommError.
/// `ranks_per_node` above 0 makes the ranks behave as if so many, in order, were on each node.
trireme::comm::Transport* trireme_mpi_transport(int ranks_per_node);
/// What rank 0 holds, on every rank. All ranks call it, before the first group is made.
void trireme_mpi_broadcast(trireme::comm::Transport* transport, void* data, std::size_t bytes);
}
