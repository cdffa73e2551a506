// spmd/reference.h -- a graph whole, on one rank, differentiated by autograd: what every strategy must equal.
//
// Only forward operators are run here, each by ATen's own operator where it has one, so neither the derived gradients
// nor the executor's kernels judge themselves.
// Depends on: values.
#pragma once

#include "trireme/spmd/ops/kernel.h"
#include "trireme/spmd/values.h"

namespace trireme::spmd {

struct Reference {
  double loss = 0;   ///< the sum of all losses
  Values gradients;  ///< [tensor] of parameters
};

/// Of a graph with or without its gradient operators, which are not looked at.
Reference run_reference(const pg::Graph& graph, const Values& start, std::uint64_t seed, std::int64_t step);
/// One micro-batch after the other, gradients accumulated: batch norms have the statistics of micro-batches. `graph`
/// and `start` are of the whole batch.
Reference run_micro_reference(const pg::Graph& graph, const Values& start, std::uint64_t seed, std::int64_t step,
                              int micros);
/// The same with the library's batch norm instead of its formula: what people run, for benchmarks.
Reference run_eager(const pg::Graph& graph, const Values& start);
/// What the last loss reads, without dropout and with running statistics.
at::Tensor run_logits(const pg::Graph& graph, const Values& values, const RunningStatistics& running);
/// Inputs of one micro-batch; the rest as it is. `graph` may be of the batch or of the micro-batch.
Values values_of_micro(const pg::Graph& graph, const Values& start, const MicroBatch& micro);

}  // namespace trireme::spmd
