// plan/graph/count.h -- what a graph takes: parameters, FLOPs, bytes, and memory by liveness.
//
// A GEMM of m x k x n is 2 m k n FLOPs; a convolution is counted as the GEMM it is; operators that only stream count
// one a number they write. Bytes are those an operator reads and writes once.
// Depends on: graph, cost.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "trireme/cost/hardware.h"
#include "trireme/plan/graph/graph.h"

namespace trireme::plan::graph {

enum class Unit : std::uint8_t { kMatmul, kAttention, kStream, kNothing };

struct Work {
  double flops = 0, bytes = 0;
  Unit unit = Unit::kStream;
  bool operator==(const Work&) const = default;
};

/// Of one device's part, where dimension i of the iteration space is split into degrees[i] parts; empty: the whole.
Work work_of(const Graph& graph, const Op& op, const IterationSpace& space, std::span<const int> degrees = {});
/// With the rooflines of cost/roofline.h; GEMMs take `arithmetic`.
double seconds_of(const cost::Hardware& hardware, cost::Arithmetic arithmetic, const Work& work);

struct GraphCount {
  Index parameters = 0;
  double parameter_bytes = 0;
  double forward_flops = 0, backward_flops = 0;
  double matmul_flops = 0;  ///< of forward: GEMMs and convolutions alone, which papers count (as two a multiply-add)
  double bytes = 0;         ///< read and written by all operators
  double peak_bytes = 0;    ///< of a step by liveness: parameters, their gradients and what is alive
};
/// `graph` as built or with its backward: what is there is counted.
GraphCount count(const Graph& graph);

/// Bytes of a device at each operator, in the order of the graph: parameters, and every tensor from where it is made to
/// where it is read last; gradients of parameters stay. A reshape takes no memory of its own. `bytes` says how much of
/// a tensor the device holds.
std::vector<double> live_bytes(const Graph& graph, const std::function<double(int tensor)>& bytes);

}  // namespace trireme::plan::graph
