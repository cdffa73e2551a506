// cost/group_time.h -- how long a collective takes on a group of a cluster's devices.
//
// Inside a node it goes over the node's links, across nodes each device drives its own share of the network, as
// NCCL's rings over several rails do; the two phases work on different parts of the data, so the longer one counts.
// Each phase takes the cheapest algorithm of collectives.h for its size.
// Depends on: collectives, hardware.
#pragma once

#include "trireme/cost/collectives.h"
#include "trireme/cost/hardware.h"

namespace trireme::cost {

/// A group, and how it lies on the cluster.
struct GroupShape {
  int ranks = 1;
  int per_node = 1;   ///< of its ranks, how many share a node
  int groups = 1;     ///< like it that communicate at the same time
  double extent = 0;  ///< devices from its first to its last; more than a pod: it crosses scarce links
};

/// Bytes as in collectives.h.
double group_seconds(const Hardware& hardware, Collective op, const GroupShape& group, double bytes);
/// The least by the data sheets: what must cross each kind of link, at its whole bandwidth and without latency.
double least_group_seconds(const Hardware& hardware, Collective op, const GroupShape& group, double bytes);
/// One message between two devices, of one node or of two.
double message_seconds(const Hardware& hardware, double bytes, bool across_nodes);

}  // namespace trireme::cost
