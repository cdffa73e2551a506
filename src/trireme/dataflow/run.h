// dataflow/run.h -- a graph trains on instances, in three ways that differ in who carries messages.
//
//   RunOptions options{.instances = order, .max_active_keys = 8};
//   run_virtual(graph, source, options, times);   // discrete events: how fast it would be, and who is busy
//   run_seeded(graph, source, options, seed);     // threads over comm::Mailbox, every delivery drawn from the seed
//   run_threads(graph, source, options);          // threads of this machine
//
// In all of them a worker takes backward messages before forward ones, so that what is in flight comes to an end before
// more comes in, and at most max_active_keys instances are in flight: that bounds every queue, and how old gradients
// get. With one instance at a time the order of messages does not matter, and all three are sequential SGD, bit for
// bit.
// Depends on: graph, comm.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/dataflow/graph.h"

namespace trireme::dataflow {

struct RunOptions {
  std::vector<int> instances;  ///< in the order in which they come in
  int max_active_keys = 1;     ///< instances in flight at once
};

/// What an instance begins with.
using Source = std::function<Payload(int instance)>;

struct DataflowResult {
  std::int64_t messages = 0;
  std::int64_t longest_queue = 0;  ///< messages that waited at one worker
  /// By worker: messages from when they came until they were taken up; in virtual runs in virtual time.
  std::vector<QueueReading> queues = {};
};

/// How long things take, in seconds of virtual time.
struct VirtualTimes {
  /// Of processing a message by a node.
  std::function<double(const Graph& graph, int node, bool backward)> service;
  double link = 0;  ///< of a message between workers
};
/// By floating-point operations at so many a second, beside a constant for each message.
VirtualTimes times_by_flops(double flops_per_second, double overhead_seconds, double link_seconds);

struct VirtualResult : DataflowResult {
  double seconds = 0;
  std::vector<double> busy;  ///< by worker, seconds
  double throughput(std::size_t instances) const { return static_cast<double>(instances) / seconds; }
  /// Of the worker that is busiest, as a share of all time.
  double busiest() const;
};

VirtualResult run_virtual(Graph& graph, const Source& source, const RunOptions& options, const VirtualTimes& times);
DataflowResult run_seeded(Graph& graph, const Source& source, const RunOptions& options, std::uint64_t seed);
DataflowResult run_threads(Graph& graph, const Source& source, const RunOptions& options);

}  // namespace trireme::dataflow
