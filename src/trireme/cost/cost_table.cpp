#include "trireme/cost/cost_table.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::cost {

namespace {

// Two cores of a small server: what a measurement there gave, rounded.
constexpr LinkCost kSharedMemory{.alpha = 1e-6, .beta = 1.7e-10, .gamma = 1e-10};
constexpr LinkCost kProcesses{.alpha = 0.7e-6, .beta = 2.5e-10, .gamma = 1e-10};
// TCP over the loopback interface, which ranks of one node take where they are in no board together.
constexpr LinkCost kUcxLoopback{.alpha = 8e-6, .beta = 3.5e-10, .gamma = 1e-10};
// 25 Gb/s Ethernet, the least that clusters are built with.
constexpr LinkCost kEthernet{.alpha = 15e-6, .beta = 3.2e-10, .gamma = 1e-10};
// What the emulated transport imitates unless told otherwise.
constexpr LinkCost kEmulated{.alpha = 20e-6, .beta = 1e-9, .gamma = 1e-10};

TransportCost threads() {
  TransportCost costs{.links = {kSharedMemory, kSharedMemory}};
  for (const Collective op : all_collectives()) costs.measured[{Algorithm::kDirect, op}] = {0.4e-6, 1e-10};
  return costs;
}

TransportCost mpi() {
  TransportCost costs{.links = {kProcesses, kEthernet}};
  for (const Collective op : all_collectives()) {
    costs.measured[{Algorithm::kDirect, op}] = {0.5e-6, 2.2e-10};
    costs.measured[{Algorithm::kNative, op}] = {2e-6, 5e-10};  // Open MPI's non-blocking forms
  }
  costs.measured[{Algorithm::kNative, Collective::kReduceScatter}] = {2e-6, 2.3e-9};
  return costs;
}

TransportCost ucx() {
  TransportCost costs{.links = {kUcxLoopback, kEthernet}};
  for (const Collective op : all_collectives()) costs.measured[{Algorithm::kDirect, op}] = {0.5e-6, 2.2e-10};
  return costs;
}

int rounds(int ranks) { return std::bit_width(static_cast<unsigned>(ranks - 1)); }

}  // namespace

double TransportCost::predict(Collective op, Algorithm algorithm, const Topology& topology, double bytes) const {
  const auto found = measured.find({algorithm, op});
  if (algorithm == Algorithm::kDirect || algorithm == Algorithm::kNative) {
    if (found == measured.end()) return std::numeric_limits<double>::infinity();
    const auto [alpha, beta] = found->second;
    return rounds(topology.ranks) * alpha + wire_bytes(op, topology.ranks, bytes) * beta;
  }
  if (found == measured.end()) return cost::predict(op, algorithm, topology, bytes, links);
  Links fitted = links;
  for (LinkCost* link : {&fitted.inside, &fitted.across}) {
    link->alpha = found->second.alpha;
    link->beta = found->second.beta;
  }
  return cost::predict(op, algorithm, topology, bytes, fitted);
}

CostTable::CostTable()
    : transports_{
          {"threads", threads()}, {"mpi", mpi()}, {"ucx", ucx()}, {"emulated", {.links = {kEmulated, kEmulated}}}} {}

const TransportCost& CostTable::of(std::string_view transport) const {
  const auto found = transports_.find(transport);
  if (found == transports_.end())
    throw ConfigError(fmt::format("no costs are known for the transport '{}'", transport),
                      "use threads, mpi, ucx or emulated");
  return found->second;
}

TransportCost& CostTable::of(std::string_view transport) {
  return const_cast<TransportCost&>(std::as_const(*this).of(transport));
}

Algorithm choose(Collective op, const Topology& topology, double bytes, std::span<const Algorithm> candidates,
                 const TransportCost& costs) {
  TRIREME_CHECK(!candidates.empty(), "{} has no algorithm to choose from", name(op));
  Algorithm best = candidates.front();
  double least = costs.predict(op, best, topology, bytes);
  for (const Algorithm candidate : candidates.subspan(1)) {
    const double seconds = costs.predict(op, candidate, topology, bytes);
    if (seconds < least) {
      least = seconds;
      best = candidate;
    }
  }
  return best;
}

}  // namespace trireme::cost
