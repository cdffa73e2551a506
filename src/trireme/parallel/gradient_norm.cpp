#include "trireme/parallel/gradient_norm.h"

#include <algorithm>

#include "trireme/layout/axis_sets.h"
#include "trireme/layout/reduction.h"

namespace trireme::parallel {
namespace {

/// A stretch of the memory of all pieces, as it lies in what a partition leaves of it; empty where it leaves nothing.
layout::Range in_partition(const layout::Placement& placement, layout::Range range) {
  if (!placement.partition) return range;
  const layout::Index from = std::max(range.begin, placement.partition->begin);
  const layout::Index to = std::min(range.end, placement.partition->end);
  if (from >= to) return {};
  return {from - placement.partition->begin, to - placement.partition->begin};
}

void count_once(nn::Param& param, const layout::Mesh& mesh, int rank, const layout::AxisNames& axes) {
  std::vector<layout::Range> ranges;
  bool all = true;
  layout::Index at = 0;
  for (const layout::Piece& piece : param.placement.pieces) {
    const layout::Index size = piece.box.elements() + piece.padding;
    if (layout::is_first_copy(mesh, rank, layout::intersect(mesh, piece.replica_axes, axes))) {
      const layout::Range local = in_partition(param.placement, {at, at + size});
      if (local.end > local.begin) ranges.push_back(local);
    } else {
      all = false;
    }
    at += size;
  }
  if (all) {
    param.counted.reset();
  } else {
    param.counted = std::move(ranges);
  }
}

}  // namespace

layout::AxisNames norm_axes(const nn::Params& owned, const layout::Mesh& mesh) {
  layout::AxisNames axes;
  for (const nn::Param& param : owned) {
    if (param.trainable) axes = layout::unite(mesh, axes, layout::split_axes(mesh, param.placement));
  }
  return axes;
}

optim::AcrossRanks sum_across(nn::Params& owned, MeshGroups& groups, const layout::AxisNames& axes) {
  comm::Group* parts = groups.along(axes);
  if (parts == nullptr) return {};
  for (nn::Param& param : owned) count_once(param, groups.mesh(), groups.rank(), axes);
  return {.sum_parts = [parts](std::span<double> squares) {
    parts->all_reduce(comm::Buffer{squares.data(), squares.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
  }};
}

}  // namespace trireme::parallel
