// plan/graph/backward.h -- the gradient operators of a graph, derived.
//
// Every loss of the graph is one to be minimised. The gradient of a tensor that several operators read is the sum of
// their parts, added up in the order in which backward makes them. A gradient operator knows its forward operator,
// whose split it takes, and reads no more of forward than it needs: what is saved is what memory by liveness counts.
// Depends on: graph.
#pragma once

#include "trireme/plan/graph/graph.h"

namespace trireme::plan::graph {

/// The graph with its gradient operators after its own. ConfigError where it has no loss.
Graph with_backward(const Graph& forward);

/// The forward graph that a graph with gradient operators was derived from.
Graph without_backward(const Graph& both);

/// Whether an operator makes nothing but gradients of parameters, their sums included: nothing of the backward pass
/// waits for it (the weight gradients of zero-bubble schedules).
bool makes_weight_gradients(const Graph& both, const Op& op);

/// The finished gradient of a tensor, in a graph that has them; -1 where nothing trains it.
int gradient_of(const Graph& graph, int tensor);

}  // namespace trireme::plan::graph
