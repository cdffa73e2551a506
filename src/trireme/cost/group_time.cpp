#include "trireme/cost/group_time.h"

#include <algorithm>
#include <limits>

namespace trireme::cost {
namespace {

LinkCost link_inside(const Hardware& hardware) {
  return {.alpha = hardware.cluster.link.latency_us * 1e-6,
          .beta = 1 / (hardware.link_bandwidth() * hardware.device.efficiency.link)};
}

/// Of a device's share of the network, where several groups may meet above a pod.
double bandwidth_across(const Hardware& hardware, const GroupShape& group) {
  const Network& network = hardware.cluster.network;
  double bandwidth = hardware.network_bandwidth();
  if (network.pod_gpus > 0 && group.extent > network.pod_gpus) {
    // Every group crosses the border of a pod once in each direction, on each of its rails.
    const double flows = static_cast<double>(group.groups) * group.per_node;
    const double above = network.pod_gpus * bandwidth / network.oversubscription;
    bandwidth = std::min(bandwidth, above / flows);
  }
  return bandwidth;
}

LinkCost link_across(const Hardware& hardware, const GroupShape& group) {
  return {.alpha = hardware.cluster.network.latency_us * 1e-6,
          .beta = 1 / (bandwidth_across(hardware, group) * hardware.device.efficiency.network)};
}

double cheapest(Collective op, int ranks, double bytes, const LinkCost& link) {
  if (ranks <= 1) return 0;
  double best = std::numeric_limits<double>::infinity();
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kRecursiveDoubling,
                                    Algorithm::kBruck, Algorithm::kPairwise, Algorithm::kBinomial})
    best = std::min(best, predict(op, algorithm, ranks, bytes, link));
  return best;
}

}  // namespace

double group_seconds(const Hardware& hardware, Collective op, const GroupShape& group, double bytes) {
  if (group.ranks <= 1 || bytes <= 0) return 0;
  const double start = hardware.device.efficiency.kernel_seconds;
  const int inside = std::clamp(group.per_node, 1, group.ranks);
  if (inside == group.ranks) return start + cheapest(op, group.ranks, bytes, link_inside(hardware));
  const LinkCost across = link_across(hardware, group);
  const int nodes = (group.ranks + inside - 1) / inside;
  if (op == Collective::kAllToAll) {  // what stays in the node and what leaves it go over different links
    const double near = bytes * inside / group.ranks;
    return start + std::max(cheapest(op, inside, near, link_inside(hardware)),
                            cheapest(op, nodes, bytes - near + bytes / group.ranks, across));
  }
  return start +
         std::max(cheapest(op, inside, bytes, link_inside(hardware)), cheapest(op, nodes, bytes / inside, across));
}

double least_group_seconds(const Hardware& hardware, Collective op, const GroupShape& group, double bytes) {
  if (group.ranks <= 1 || bytes <= 0) return 0;
  const int inside = std::clamp(group.per_node, 1, group.ranks), nodes = (group.ranks + inside - 1) / inside;
  // As group_seconds() shares them out; of an all-to-all most go to other nodes, each rank's over its own adapter.
  const bool all_to_all = op == Collective::kAllToAll;
  const double near = wire_bytes(op, inside, all_to_all ? bytes * inside / group.ranks : bytes);
  const double far = nodes == 1   ? 0
                     : all_to_all ? wire_bytes(op, group.ranks, bytes) - near
                                  : wire_bytes(op, nodes, bytes / inside);
  return std::max(inside > 1 ? near / hardware.link_bandwidth() : 0,
                  nodes > 1 ? far / bandwidth_across(hardware, group) : 0);
}

double message_seconds(const Hardware& hardware, double bytes, bool across_nodes) {
  const LinkCost link = across_nodes ? link_across(hardware, {}) : link_inside(hardware);
  return link.alpha + bytes * link.beta;
}

}  // namespace trireme::cost
