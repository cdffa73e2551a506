#include "trireme/parallel/bucket.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/layout/reduction.h"

namespace trireme::parallel {
namespace {

constexpr std::int64_t kAlign = 16;  // elements: rows of vectors begin where they begin in memory

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void fill_buckets(BucketPlan& plan, const std::vector<ShardUnit>& units, nn::Params& params,
                  const DataParallelOptions& options, const layout::Mesh& mesh, const std::vector<std::string>& apart) {
  auto& buckets = plan.buckets;
  std::map<const nn::Param*, std::size_t> unit_of;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    for (const nn::Param* param : units[unit].params) unit_of.try_emplace(param, unit);
  }
  std::vector<nn::Param*> order;
  for (nn::Param& param : params) order.push_back(&param);
  std::ranges::reverse(order);  // about the order in which backward completes them
  std::map<std::string, std::size_t> open;
  for (nn::Param* param : order) {
    const auto found = unit_of.find(param);
    TRIREME_CHECK(found != unit_of.end(), "no unit has {}", param->name);
    const int key = units[found->second].key;
    const bool by_itself = std::ranges::find(apart, param->name) != apart.end();
    // With ZeRO 3 a bucket is (a part of) what one unit needs; otherwise as many neighbours as fill it.
    const at::ScalarType master = nn::master_type(options.precision, *param),
                         gradient = nn::gradient_type(options.precision, *param);
    const auto width = static_cast<std::int64_t>(c10::elementSize(gradient));
    const layout::AxisNames axes =
        layout::intersect(mesh, layout::shared_reduction_axes(mesh, param->placement, param->equal_axes), options.data);
    std::string kind = fmt::format("{} {} {} {} over {}", key, param->trainable, c10::toString(master),
                                   c10::toString(gradient), fmt::join(axes, " "));
    if (options.zero == 3) kind += fmt::format(" unit {}", found->second);
    if (by_itself) kind += " " + param->name;
    auto at = open.find(kind);
    const std::int64_t size = round_up(layout::local_elements(param->placement), kAlign);
    // A small first bucket is on its way while backward has hardly begun (PyTorch DDP).
    const bool first = at != open.end() && at->second == 0 && options.first_bucket_bytes > 0;
    const std::int64_t limit = first ? options.first_bucket_bytes : options.bucket_bytes;
    if (at != open.end() && limit > 0 && (buckets[at->second].elements + size) * width > limit) {
      open.erase(at);
      at = open.end();
    }
    if (at == open.end()) {
      at = open.emplace(kind, buckets.size()).first;
      buckets.emplace_back();
      buckets.back().key = key;
      buckets.back().trainable = param->trainable;
      buckets.back().master_type = master;
      buckets.back().gradient_type = gradient;
      buckets.back().axes = axes;
      if (options.zero > 0) buckets.back().shard_axes = layout::intersect(mesh, axes, options.shard);
    }
    Bucket& bucket = buckets[at->second];
    bucket.members.push_back({.param = param, .offset = bucket.elements});
    bucket.elements += size;
    bucket.expected += param->uses;
  }
}

/// By the member that backward completes last: buckets of several kinds fill side by side, and one that stays open for
/// long must not hold back those that are full before it.
void sort_by_completion(BucketPlan& plan, const nn::Params& params) {
  std::map<const nn::Param*, std::int64_t> position;
  for (const nn::Param& param : params) position.emplace(&param, -static_cast<std::int64_t>(position.size()));
  std::ranges::stable_sort(plan.buckets, {}, [&](const Bucket& bucket) {
    return position.at(bucket.members.back().param);  // members are in the order of backward
  });
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    for (const BucketMember& member : plan.buckets[i].members) plan.bucket_of[member.param] = i;
  }
}

}  // namespace

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

BucketPlan plan_buckets(const std::vector<ShardUnit>& units, nn::Params& params, const DataParallelOptions& options,
                        MeshPoint at, const std::vector<std::string>& apart) {
  BucketPlan plan;
  fill_buckets(plan, units, params, options, at.mesh, apart);
  sort_by_completion(plan, params);
  for (Bucket& bucket : plan.buckets) {
    const int parts = at.mesh.group_size(bucket.shard_axes);
    bucket.elements = round_up(bucket.elements, kAlign * parts);
    bucket.begin = bucket.elements / parts * at.mesh.index_in_group(at.rank, bucket.shard_axes);
    bucket.end = bucket.begin + bucket.elements / parts;
  }
  plan.unit_buckets.resize(units.size());
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    for (const nn::Param* param : units[unit].params) {
      const std::size_t bucket = plan.bucket_of.at(param);
      auto& list = plan.unit_buckets[unit];
      if (std::ranges::find(list, bucket) == list.end()) list.push_back(bucket);
    }
  }
  return plan;
}

}  // namespace trireme::parallel
