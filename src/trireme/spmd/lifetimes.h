// spmd/lifetimes.h -- when each thing that a step holds is read last, by the order in which operators run.
//
// An operator may run twice, the second time to have its activations again for backward. A thing goes after a step of
// the program when the next one that touches it makes it anew, or none does.
// Depends on: plan/graph.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "trireme/plan/graph/strategy.h"

namespace trireme::spmd {

namespace pg = plan::graph;

/// A tensor as one forward operator and its gradient operators want it.
using Wanted = std::tuple<int, int, std::vector<int>>;  // tensor, forward operator, wanted dimensions

/// What is read no more after one step of the program.
struct Over {
  std::vector<int> values;                    ///< tensors as they were made
  std::vector<Wanted> converted;              ///< as an operator wants them
  std::vector<std::pair<int, int>> extended;  ///< with halos: tensor, forward operator
  std::vector<int> kept;                      ///< forward operators: what they left for their gradients
};

/// The forward operator that an operator belongs to.
inline int family_of(const pg::Graph& both, int op) { return both.op(op).forward >= 0 ? both.op(op).forward : op; }

/// [step of the program]. What links of updates read stays to the end.
std::vector<Over> lifetimes_of(const pg::Graph& both, const std::vector<pg::IterationSpace>& spaces,
                               const std::vector<pg::Link>& links, const std::vector<pg::ProgramStep>& program);

}  // namespace trireme::spmd
