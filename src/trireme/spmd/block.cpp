#include "trireme/spmd/block.h"

#include <ATen/ops/sum.h>

#include <algorithm>

namespace trireme::spmd {

Place place_of(const pg::Graph& graph, const layout::Mesh& mesh, const std::vector<int>& coordinates, int tensor,
               const pg::Sharding& sharding) {
  Place place;
  const auto& dims = graph.tensor(tensor).dims;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    Index parts = 1, part = 0;
    for (const int axis : sharding.dims[i]) {
      const Index size = mesh.axes()[static_cast<std::size_t>(axis)].size;
      parts *= size;
      part = part * size + coordinates[static_cast<std::size_t>(axis)];
    }
    place.sizes.push_back(graph.size(dims[i]) / parts);
    place.origin.push_back(part * place.sizes.back());
  }
  return place;
}

at::Tensor box_of(const at::Tensor& whole, const Place& place) {
  at::Tensor box = whole;
  for (std::size_t i = 0; i < place.origin.size(); ++i) {
    if (place.sizes[i] != whole.size(static_cast<std::int64_t>(i)))
      box = box.narrow(static_cast<std::int64_t>(i), place.origin[i], place.sizes[i]);
  }
  return box;
}

int position(const std::vector<int>& dims, int dim) {
  const auto found = std::ranges::find(dims, dim);
  return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
}

at::Tensor aligned(const at::Tensor& data, const std::vector<int>& dims, const std::vector<int>& to) {
  std::vector<std::int64_t> order, sizes;
  for (const int dim : to) {
    const int at = position(dims, dim);
    if (at >= 0) order.push_back(at);
    sizes.push_back(at >= 0 ? data.size(at) : 1);
  }
  return data.permute(order).reshape(sizes);
}

at::Tensor summed_to(const at::Tensor& data, const std::vector<int>& from, const std::vector<int>& dims) {
  std::vector<std::int64_t> gone, order;
  std::vector<int> left;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (position(dims, from[i]) < 0) {
      gone.push_back(static_cast<std::int64_t>(i));
    } else {
      left.push_back(from[i]);
    }
  }
  const at::Tensor sum = gone.empty() ? data : at::sum(data, gone);
  for (const int dim : dims) order.push_back(position(left, dim));
  return sum.permute(order).contiguous();
}

}  // namespace trireme::spmd
