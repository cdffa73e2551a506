#include "trireme/parallel/compress/local_clip.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/reduction.h"
#include "trireme/parallel/compress/compressed_reducer.h"

namespace trireme::parallel {

LocalClip::LocalClip(const BucketPlan& plan, MeshGroups& groups, const DataParallelOptions& options)
    : limit_(options.grad_clip_norm) {
  const layout::Mesh& mesh = groups.mesh();
  const layout::AxisNames inside = layout::subtract(mesh, mesh.wide_axes(), options.data);
  std::map<layout::AxisNames, Partial> partial;
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    const Bucket& bucket = plan.buckets[i];
    for (const BucketMember& member : bucket.members) {
      if (!bucket.trainable) continue;
      const nn::Param& param = *member.param;
      const auto held = options.holders.find(param.name);
      std::int64_t at = 0;
      for (const layout::Piece& piece : param.placement.pieces) {
        const std::int64_t count = piece.box.elements() + piece.padding;
        const Stretch stretch{
            .bucket = i,
            .begin = member.offset + at,
            .count = count,
            .counts = layout::is_first_copy(mesh, groups.rank(), layout::intersect(mesh, piece.replica_axes, inside)),
            .weight = held == options.holders.end() ? 1.0 : 1.0 / held->second};
        at += count;
        layout::Placement one = param.placement;
        one.pieces = {piece};
        layout::AxisNames axes =
            layout::subtract(mesh, layout::shared_reduction_axes(mesh, one, param.equal_axes), bucket.axes);
        std::ranges::sort(axes);
        if (axes.empty()) {
          if (stretch.counts) whole_.push_back(stretch);
        } else {
          partial.try_emplace(axes, Partial{.axes = axes}).first->second.stretches.push_back(stretch);
        }
      }
    }
  }
  std::vector<layout::AxisNames> wanted{inside};
  for (const auto& [axes, entry] : partial) wanted.push_back(axes);
  groups.agree_on(wanted);
  parts_ = groups.along(inside);
  for (auto& [axes, entry] : partial) {
    entry.group = groups.along(axes);
    partial_.push_back(std::move(entry));
  }
}

double LocalClip::squares(const BucketPlan& plan) {
  const auto part = [&](const Stretch& stretch) {
    return plan.buckets[stretch.bucket].sending.narrow(0, stretch.begin, stretch.count);
  };
  double sum = 0;
  for (const Stretch& stretch : whole_) sum += stretch.weight * squared(part(stretch));
  for (Partial& entry : partial_) {
    std::vector<at::Tensor> parts;
    for (const Stretch& stretch : entry.stretches) parts.push_back(part(stretch));
    at::Tensor flat = at::cat(parts);
    if (entry.group != nullptr) entry.group->all_reduce(device::to_buffer(flat), comm::Reduce::kSum).wait();
    std::int64_t at = 0;
    for (const Stretch& stretch : entry.stretches) {
      if (stretch.counts) sum += stretch.weight * squared(flat.narrow(0, at, stretch.count));
      at += stretch.count;
    }
  }
  if (parts_ != nullptr) parts_->all_reduce(comm::Buffer{&sum, 1, comm::DType::kF64}, comm::Reduce::kSum).wait();
  return sum;
}

void LocalClip::clip(BucketPlan& plan, int copies) {
  const double limit = limit_ / std::sqrt(copies), norm = std::sqrt(squares(plan));
  if (!(norm > limit)) return;
  for (Bucket& bucket : plan.buckets) {
    if (bucket.trainable) bucket.sending.mul_(limit / norm);
  }
}

}  // namespace trireme::parallel
