// schedule/wiring.h -- which message each transfer of a table is, for whoever executes the table.
//
// A channel is everything one rank sends to another, activations and gradients alike; its messages keep their order.
// Depends on: schedule.
#pragma once

#include <vector>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

struct TransferId {
  int channel = -1;   // -1: not a transfer
  int sequence = -1;  // in the channel, counted by the sender for sends and by the receiver for receives
};

struct Channel {
  int from = 0, to = 0;
  std::vector<Instruction> sends, receives;  // as posted
};

struct Wiring {
  std::vector<Channel> channels;
  std::vector<std::vector<TransferId>> messages;  // [rank][position]; a wait has the message it is for
};

/// For a table whose transfers are all between ranks and posted before they are waited for.
Wiring wire(const Schedule& schedule);

}  // namespace trireme::schedule
