#include "trireme/parallel/bucket.h"

#include <ATen/ops/empty.h>

namespace trireme::parallel {

at::Tensor BufferPool::take(std::int64_t elements, const at::TensorOptions& options) {
  const auto found = free_.lower_bound(elements);
  if (found != free_.end() && found->second.dtype() == options.dtype()) {
    at::Tensor buffer = found->second;
    free_.erase(found);
    return buffer.narrow(0, 0, elements);
  }
  // A smaller one would never fit again: its place is taken by the new one.
  if (!free_.empty()) {
    const auto largest = std::prev(free_.end());
    bytes_ -= static_cast<std::int64_t>(largest->second.nbytes());
    free_.erase(largest);
  }
  at::Tensor buffer = at::empty({elements}, options);
  bytes_ += static_cast<std::int64_t>(buffer.nbytes());
  return buffer;
}

void BufferPool::give(at::Tensor buffer) {
  // What was lent may be a part of what there is.
  const auto whole = static_cast<std::int64_t>(buffer.storage().nbytes() / buffer.element_size());
  at::Tensor all = buffer.as_strided({whole}, {1}, 0);
  free_.emplace(whole, std::move(all));
}

}  // namespace trireme::parallel
