// comm/ucx_plugin/ucx_plugin.h -- what libtrireme_ucx offers to the rooms that know no UCX.
// Depends on: transport.h, control.h, mail_protocol.h, network_interfaces.h.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "trireme/comm/mail_protocol.h"
#include "trireme/comm/network_interfaces.h"

namespace trireme::comm {
class ControlPlane;
class Mailbox;
class Transport;

struct UcxOptions {
  int ranks_per_node = 0;                          ///< above 0: as if so many ranks, in order, were on each node
  ChosenInterfaces interfaces = {};                ///< of this machine; none: as UCX finds them
  std::chrono::milliseconds meet_timeout{60'000};  ///< for the other ranks to come
  std::function<bool()> called_off = {};           ///< they will not: no more waiting
};

struct UcxMailOptions {
  int address = 0;  ///< whom others post to; a new mailbox of an address takes the place of the one before
  ChosenInterfaces interfaces = {};  ///< as UcxOptions::interfaces
  MailLimits limits = {};
  std::chrono::milliseconds deadline{600'000};  ///< of post and receive
  std::chrono::milliseconds linger{5'000};      ///< at the end, for mail that was posted and not taken yet
  int break_every = 0;  ///< fault injection: a connection breaks after so many frames, with what is under way
};
}  // namespace trireme::comm

extern "C" {
/// This process's endpoint; the caller owns it. All ranks of the plane call it. The plane must live as long as groups
/// are made. Throws CommError, or ConfigError when ranks differ in what they are built with.
trireme::comm::Transport* trireme_ucx_transport(trireme::comm::ControlPlane& control,
                                                const trireme::comm::UcxOptions& options);

/// A mailbox of this process; the caller owns it. The plane must outlive it, and all mailboxes that are to meet have
/// planes of one job.
trireme::comm::Mailbox* trireme_ucx_mailbox(trireme::comm::ControlPlane& control,
                                            const trireme::comm::UcxMailOptions& options);
}
