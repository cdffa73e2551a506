// spmd/reference.h -- a graph whole, on one rank, differentiated by autograd: what every strategy must equal.
//
// Only forward operators are run here, each by ATen's own operator where it has one, so neither the derived gradients
// nor the executor's kernels judge themselves.
// Depends on: values.
#pragma once

#include "trireme/spmd/values.h"

namespace trireme::spmd {

struct Reference {
  double loss = 0;   ///< the sum of all losses
  Values gradients;  ///< [tensor] of parameters
};

/// Of a graph with or without its gradient operators, which are not looked at.
Reference run_reference(const pg::Graph& graph, const Values& start, std::uint64_t seed, std::int64_t step);

}  // namespace trireme::spmd
