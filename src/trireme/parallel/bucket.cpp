#include "trireme/parallel/bucket.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::parallel {

at::Tensor BufferPool::take(std::int64_t elements, const at::TensorOptions& options) {
  auto& free = free_[c10::typeMetaToScalarType(options.dtype())];
  const auto found = free.lower_bound(elements);
  if (found != free.end()) {
    at::Tensor buffer = found->second;
    free.erase(found);
    return buffer.narrow(0, 0, elements);
  }
  // A smaller one would never fit again: its place is taken by the new one.
  if (!free.empty()) {
    const auto largest = std::prev(free.end());
    bytes_ -= static_cast<std::int64_t>(largest->second.nbytes());
    free.erase(largest);
  }
  at::Tensor buffer = at::empty({elements}, options);
  bytes_ += static_cast<std::int64_t>(buffer.nbytes());
  return buffer;
}

void BufferPool::give(at::Tensor buffer) {
  // What was lent may be a part of what there is.
  const auto whole = static_cast<std::int64_t>(buffer.storage().nbytes() / buffer.element_size());
  at::Tensor all = buffer.as_strided({whole}, {1}, 0);
  free_[all.scalar_type()].emplace(whole, std::move(all));
}

at::Tensor view_in(const at::Tensor& flat, const BucketMember& member) {
  const layout::Placement& placement = member.param->placement;
  return flat.narrow(0, member.offset, layout::local_elements(placement)).view(nn::local_shape(placement));
}

layout::Range owned_range(const Bucket& bucket, const BucketMember& member) {
  const std::int64_t size = layout::local_elements(member.param->placement);
  const std::int64_t from = std::clamp(bucket.begin - member.offset, std::int64_t{0}, size);
  const std::int64_t to = std::clamp(bucket.end - member.offset, std::int64_t{0}, size);
  return {from, to};
}

at::Tensor owned_part(const Bucket& bucket, const BucketMember& member, const at::Tensor& part) {
  const auto [from, to] = owned_range(bucket, member);
  if (to <= from) return at::empty({0}, part.options());
  return part.narrow(0, member.offset + from - bucket.begin, to - from).view(nn::local_shape(member.shard->placement));
}

std::int64_t version_of(const Bucket& bucket) {
  std::int64_t sum = 0;
  for (const BucketMember& member : bucket.members) sum += member.shard->version;
  return sum;
}

BucketMember& member_of(Bucket& bucket, const nn::Param& param) {
  const auto found = std::ranges::find(bucket.members, &param, &BucketMember::param);
  TRIREME_CHECK(found != bucket.members.end(), "{} is in another bucket", param.name);
  return *found;
}

}  // namespace trireme::parallel
