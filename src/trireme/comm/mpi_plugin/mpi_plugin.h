// comm/mpi_plugin/mpi_plugin.h -- what libtrireme_mpi offers to the rooms that know no MPI.
// Depends on: transport.h, mail_protocol.h.
#pragma once

#include <chrono>
#include <cstddef>

#include "trireme/comm/mail_protocol.h"

namespace trireme::comm {
class ControlPlane;
class Mailbox;
class Transport;

struct MpiMailOptions {
  int address = 0;  ///< whom others post to
  MailLimits limits = {};
  std::chrono::milliseconds deadline{600'000};  ///< of post and receive
  std::chrono::milliseconds linger{5'000};      ///< at the end, for mail that was posted and not taken yet
};
}  // namespace trireme::comm

extern "C" {
/// Starts MPI if nobody has, and returns this process's endpoint; the caller owns it. Throws CommError.
/// `ranks_per_node` above 0 makes the ranks behave as if so many, in order, were on each node.
trireme::comm::Transport* trireme_mpi_transport(int ranks_per_node);
/// What rank 0 holds, on every rank. All ranks call it, before the first group is made.
void trireme_mpi_broadcast(trireme::comm::Transport* transport, void* data, std::size_t bytes);
/// A mailbox of this process, whose transport is there; the caller owns it, and it goes before the transport. The plane
/// must outlive it.
trireme::comm::Mailbox* trireme_mpi_mailbox(trireme::comm::ControlPlane& control,
                                            const trireme::comm::MpiMailOptions& options);
}
