// layout/reduction.h -- what a placement says about sums over ranks: who sums a gradient, and who holds other parts.
//
// Depends on: base.
#pragma once

#include <vector>

#include "trireme/layout/placement.h"

namespace trireme::layout {

/// A stretch of the rank's memory and the axes along which gradients are summed for it.
struct Reduction {
  Range local;
  AxisNames axes;
  bool operator==(const Reduction&) const = default;
};
/// Who sums the gradient: all copies, those that a partition has taken away included. `equal` names the axes along
/// which every copy already computes the whole gradient, such as tp for a norm without sequence parallelism.
std::vector<Reduction> reduction_axes(const Mesh& mesh, const Placement& placement, const AxisNames& equal = {});

/// The axes along which all of the tensor is summed. The same on all ranks, also on those that hold an empty part.
AxisNames shared_reduction_axes(const Mesh& mesh, const Placement& placement, const AxisNames& equal = {});

/// The axes along which ranks hold other parts of the tensor, be it split or partitioned: a sum over the whole tensor
/// goes over these.
AxisNames split_axes(const Mesh& mesh, const Placement& placement);

}  // namespace trireme::layout
