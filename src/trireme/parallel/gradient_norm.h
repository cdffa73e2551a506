// parallel/gradient_norm.h -- norms over all ranks, in which each number counts once.
//
// Depends on: comm, layout, nn, optim.
#pragma once

#include "trireme/optim/optimizer.h"
#include "trireme/parallel/mesh_groups.h"

namespace trireme::parallel {

/// The axes along which ranks hold other parts of some trainable parameter of these.
layout::AxisNames norm_axes(const nn::Params& owned, const layout::Mesh& mesh);

/// Sums over these axes, which norm_axes() gave, and sets Param::counted so that copies along them count once. Without
/// functions where there is nothing to sum.
optim::AcrossRanks sum_across(nn::Params& owned, MeshGroups& groups, const layout::AxisNames& axes);

}  // namespace trireme::parallel
