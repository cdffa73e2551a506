// spmd/block.h -- a rank's block of a tensor: its numbers and where they lie in the whole.
//
// Depends on: plan/graph, layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/plan/graph/sharding.h"

namespace trireme::spmd {

namespace pg = plan::graph;
using pg::Index;

/// Which box of the whole tensor; one entry for each dimension.
struct Place {
  std::vector<Index> origin, sizes;
};

struct Block {
  at::Tensor data;
  std::vector<Index> origin;
  Index size(std::size_t dim) const { return data.size(static_cast<std::int64_t>(dim)); }
  Index end(std::size_t dim) const { return origin[dim] + size(dim); }
};

/// The box that a rank at these mesh coordinates has. Along partial axes every rank has the same box.
Place place_of(const pg::Graph& graph, const layout::Mesh& mesh, const std::vector<int>& coordinates, int tensor,
               const pg::Sharding& sharding);
/// A view into the whole tensor.
at::Tensor box_of(const at::Tensor& whole, const Place& place);

/// With dimensions in the order of `to` and size 1 where it has none of them: ready to be broadcast.
at::Tensor aligned(const at::Tensor& data, const std::vector<int>& dims, const std::vector<int>& to);
/// Sums over what `dims` does not have, in the order of `dims`: the reverse of a broadcast.
at::Tensor summed_to(const at::Tensor& data, const std::vector<int>& from, const std::vector<int>& dims);
/// The position of a dimension; -1 where it is not there.
int position(const std::vector<int>& dims, int dim);

}  // namespace trireme::spmd
