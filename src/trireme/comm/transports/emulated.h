// comm/transports/emulated.h -- any transport, slowed down to a given network: latency and bandwidth by the clock.
//
// Each rank has one port. A message leaves when those before it have left, takes bytes/bandwidth to leave, and arrives
// `latency` later; what arrives from several ranks at once is taken in one after the other. So overlap, algorithms and
// the cost model can be tried on one machine as if there were a network. No shared memory, no native collectives: only
// sends and receives.
// Depends on: transport.h.
#pragma once

#include <chrono>
#include <memory>

#include "trireme/comm/transport.h"
#include "trireme/cost/collectives.h"

namespace trireme::comm {

struct EmulatedLink {
  std::chrono::nanoseconds latency{0};
  double bytes_per_second = 0;  ///< 0: unlimited
};

struct EmulatedNetwork {
  EmulatedLink across;  ///< between nodes
  EmulatedLink inside;  ///< between ranks of a node, as the wrapped transport tells them
};

std::unique_ptr<Transport> make_emulated_transport(std::unique_ptr<Transport> inner, const EmulatedNetwork& network);

/// The network in the cost model's terms; `gamma` is the combining rate of the machine that emulates.
cost::Links links_of(const EmulatedNetwork& network, double gamma);

}  // namespace trireme::comm
