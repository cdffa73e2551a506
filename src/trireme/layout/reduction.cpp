#include "trireme/layout/reduction.h"

#include <algorithm>

#include "trireme/layout/mesh.h"

namespace trireme::layout {
namespace {

AxisNames axes_of(const Mesh& mesh, const Placement& placement, const Piece& piece, const AxisNames& equal) {
  const AxisNames copies =
      placement.partition ? unite(mesh, piece.replica_axes, placement.partition->axes) : piece.replica_axes;
  return subtract(mesh, copies, equal);
}

}  // namespace

std::vector<Reduction> reduction_axes(const Mesh& mesh, const Placement& placement, const AxisNames& equal) {
  std::vector<Reduction> result;
  const Index begin = placement.partition ? placement.partition->begin : 0;
  const Index end = begin + local_elements(placement);
  Index offset = 0;
  for (const Piece& piece : placement.pieces) {
    const Range memory{offset, offset + piece.box.elements() + piece.padding};
    offset = memory.end;
    const Range local{std::max(memory.begin, begin) - begin, std::min(memory.end, end) - begin};
    if (local.begin >= local.end) continue;
    AxisNames axes = axes_of(mesh, placement, piece, equal);
    if (!result.empty() && result.back().axes == axes) {
      result.back().local.end = local.end;
    } else {
      result.push_back({local, std::move(axes)});
    }
  }
  return result;
}

AxisNames shared_reduction_axes(const Mesh& mesh, const Placement& placement, const AxisNames& equal) {
  if (placement.pieces.empty()) return {};
  AxisNames shared = axes_of(mesh, placement, placement.pieces.front(), equal);
  for (const Piece& piece : placement.pieces) {
    shared = intersect(mesh, shared, axes_of(mesh, placement, piece, equal));
  }
  return shared;
}

AxisNames split_axes(const Mesh& mesh, const Placement& placement) {
  AxisNames split;
  const AxisNames present = subtract(mesh, mesh.wide_axes(), placement.absent_axes);
  for (const Piece& piece : placement.pieces) {
    split = unite(mesh, split, subtract(mesh, present, piece.replica_axes));
  }
  return split;
}

}  // namespace trireme::layout
