#include "trireme/spmd/block.h"

#include <ATen/ops/sum.h>

#include <algorithm>

namespace trireme::spmd {

at::Tensor box_of(const at::Tensor& whole, const Place& place) {
  at::Tensor box = whole;
  for (std::size_t i = 0; i < place.origin.size(); ++i) {
    if (place.sizes[i] != whole.size(static_cast<std::int64_t>(i)))
      box = box.narrow(static_cast<std::int64_t>(i), place.origin[i], place.sizes[i]);
  }
  return box;
}

at::Tensor packed(const at::Tensor& data) { return data.is_non_overlapping_and_dense() ? data : data.contiguous(); }

int position(const std::vector<int>& dims, int dim) {
  const auto found = std::ranges::find(dims, dim);
  return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
}

at::Tensor aligned(const at::Tensor& data, const std::vector<int>& dims, const std::vector<int>& to) {
  if (dims == to) return data;
  std::vector<std::int64_t> order, sizes;
  for (const int dim : to) {
    const int at = position(dims, dim);
    if (at >= 0) order.push_back(at);
    sizes.push_back(at >= 0 ? data.size(at) : 1);
  }
  return data.permute(order).reshape(sizes);
}

at::Tensor summed_to(const at::Tensor& data, const std::vector<int>& from, const std::vector<int>& dims) {
  if (from == dims) return packed(data);
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
