// comm/control/handshake.h -- how a rank gets in: find the server, say who we are, be welcomed or learn why not.
//
// Depends on: base.
#pragma once

#include <string>

#include "trireme/comm/control.h"
#include "trireme/comm/control/socket.h"
#include "trireme/comm/control/wire.h"

namespace trireme::comm::control {

/// A connection whose server has said welcome. `in` may hold messages that came right behind it.
struct Handshake {
  Fd fd;
  Decoder in{kMaxFrameBytes};
};

/// Tries until options.connect_timeout, since rank 0 may start later than the others. Throws CommError.
Handshake shake_hands(const TcpControlOptions& options);

/// "the control plane at node7:29500 (served by rank 0)": the subject of every error.
std::string describe(const TcpControlOptions& options);

}  // namespace trireme::comm::control
