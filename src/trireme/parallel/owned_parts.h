// parallel/owned_parts.h -- what follows from the placements of what a rank owns: sums beyond the data's axes, and who
// counts which numbers in a norm.
//
// Depends on: base, comm, layout, nn.
#pragma once

#include <vector>

#include "trireme/nn/param.h"
#include "trireme/parallel/bucket.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {

/// Stretches of gradients that ranks along other axes than `data` hold copies of and have computed parts of: one entry
/// for each set of axes. On all ranks together.
std::vector<ExtraSum> find_extras(nn::Params& owned, MeshGroups& groups, const layout::AxisNames& data);
/// Sums them, in one exchange.
void sum_together(ExtraSum& extra);

/// Sets Param::counted, so that over the ranks along `axes` each number counts once.
void count_once(nn::Params& owned, const layout::Mesh& mesh, int rank, const layout::AxisNames& axes);

}  // namespace trireme::parallel
