// comm/measure.h -- times collectives on a group and fits the cost model to what was measured.
//
// Conventions of nccl-tests: bytes are those of the whole buffer, algorithm bandwidth is bytes over time, bus bandwidth
// that times the operation's factor; the slowest rank counts.
// Depends on: group.h, rank.h, cost.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/rank.h"

namespace trireme::comm {

struct MeasureOptions {
  std::vector<Collective> ops;
  std::vector<Algorithm> algorithms;  ///< kAuto stands for itself; ones an operation does not have are left out
  std::vector<std::size_t> bytes;
  DType type = DType::kF32;
  Reduce reduce = Reduce::kSum;
  bool in_place = false;
  double budget_s = 0.06;  ///< for each row, about
};

struct Measurement {
  Collective op;
  Algorithm algorithm;         // as asked for
  bool chosen = false;         // what `auto` takes at this size
  std::size_t bytes = 0;       // really moved: cut to a whole number of elements for each rank
  double seconds = 0;          // median of the batches
  double fastest_seconds = 0;  // of a batch
  double predicted_seconds = 0;
  int calls = 0;

  double algorithm_bandwidth() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
  double bus_bandwidth(int ranks) const { return algorithm_bandwidth() * cost::bus_factor(op, ranks); }
};

/// A row that is ready, and how many of how many are.
using OnRow = std::function<void(const Measurement& row, std::size_t done, std::size_t total)>;

/// Every rank calls it with the same options and gets the same rows; `on_row` is told of each as it is ready.
std::vector<Measurement> measure(Rank& rank, const MeasureOptions& options, const OnRow& on_row = {});

/// What one link and one core of this machine do: alpha and beta from messages between ranks 0 and 1, gamma from
/// combining.
cost::LinkCost measure_link(Rank& rank);

/// The constants of each measured algorithm that bring predictions closest to the measurements, in relative terms.
void fit(cost::TransportCost& costs, const cost::Topology& topology, const std::vector<Measurement>& rows);

}  // namespace trireme::comm
