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

using pg::Place;
using pg::place_of;

struct Block {
  at::Tensor data;
  std::vector<Index> origin;
  Index size(std::size_t dim) const { return data.size(static_cast<std::int64_t>(dim)); }
  Index end(std::size_t dim) const { return origin[dim] + size(dim); }
};

/// A view into the whole tensor.
at::Tensor box_of(const at::Tensor& whole, const Place& place);

/// As it is where its memory has no gaps, in whatever order (channels last, say); else a contiguous copy.
at::Tensor packed(const at::Tensor& data);

/// With dimensions in the order of `to` and size 1 where it has none of them: ready to be broadcast.
at::Tensor aligned(const at::Tensor& data, const std::vector<int>& dims, const std::vector<int>& to);
/// Sums over what `dims` does not have, in the order of `dims`: the reverse of a broadcast.
at::Tensor summed_to(const at::Tensor& data, const std::vector<int>& from, const std::vector<int>& dims);
/// The position of a dimension; -1 where it is not there.
int position(const std::vector<int>& dims, int dim);

}  // namespace trireme::spmd
