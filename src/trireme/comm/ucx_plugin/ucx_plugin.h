// comm/ucx_plugin/ucx_plugin.h -- what libtrireme_ucx offers to the rooms that know no UCX.
// Depends on: transport.h, control.h.
#pragma once

#include <chrono>
#include <string>

namespace trireme::comm {
class ControlPlane;
class Transport;

struct UcxOptions {
  int ranks_per_node = 0;                          ///< above 0: as if so many ranks, in order, were on each node
  std::string interface = {};                      ///< comm.interface; empty: as UCX finds them
  std::chrono::milliseconds meet_timeout{60'000};  ///< for the other ranks to come
};
}  // namespace trireme::comm

extern "C" {
/// This process's endpoint; the caller owns it. All ranks of the plane call it. The plane must live as long as groups
/// are made. Throws CommError, or ConfigError when ranks differ in what they are built with.
trireme::comm::Transport* trireme_ucx_transport(trireme::comm::ControlPlane& control,
                                                const trireme::comm::UcxOptions& options);
}
