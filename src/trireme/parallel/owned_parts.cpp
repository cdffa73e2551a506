#include "trireme/parallel/owned_parts.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>

#include "trireme/device/tensor_buffer.h"

namespace trireme::parallel {
namespace {

std::string_view base_of(const std::string& axis) { return std::string_view(axis).substr(0, axis.find_first_of("%/")); }

bool names(const layout::AxisNames& axes, std::string_view base) {
  return std::ranges::any_of(axes, [&](const std::string& axis) { return base_of(axis) == base; });
}

/// A stretch of the memory of all pieces, as it lies in what a partition leaves of it; empty where it leaves nothing.
layout::Range in_partition(const layout::Placement& placement, layout::Range range) {
  if (!placement.partition) return range;
  const layout::Index from = std::max(range.begin, placement.partition->begin);
  const layout::Index to = std::min(range.end, placement.partition->end);
  if (from >= to) return {};
  return {from - placement.partition->begin, to - placement.partition->begin};
}

}  // namespace

std::vector<ExtraSum> find_extras(nn::Params& owned, MeshGroups& groups, const layout::AxisNames& data) {
  std::map<layout::AxisNames, ExtraSum> extras;
  for (nn::Param& param : owned) {
    // Axes are a matter of pieces, whatever a partition leaves of them: ranks agree on the list even so.
    layout::Index at = 0;
    for (const layout::Piece& piece : param.placement.pieces) {
      const layout::Index size = piece.box.elements() + piece.padding;
      layout::AxisNames axes;
      for (const std::string& axis : piece.replica_axes) {
        if (!names(data, base_of(axis)) && !names(param.equal_axes, base_of(axis))) axes.push_back(axis);
      }
      if (!axes.empty()) {
        std::ranges::sort(axes);
        ExtraSum& extra = extras[axes];
        const layout::Range local = in_partition(param.placement, {at, at + size});
        if (param.trainable && local.end > local.begin) {
          extra.stretches.push_back({&param, local.begin, local.end - local.begin});
        }
      }
      at += size;
    }
  }
  std::vector<ExtraSum> found;
  for (auto& [axes, extra] : extras) {
    extra.group = groups.along(axes);
    if (extra.group != nullptr) found.push_back(std::move(extra));
  }
  return found;
}

void sum_together(ExtraSum& extra) {
  std::int64_t total = 0;
  for (const auto& stretch : extra.stretches) total += stretch.count;
  if (total == 0) return;  // the same on all ranks of the group: they hold copies
  if (!extra.buffer.defined()) {
    // In full, whatever types gradients are kept in: a sum of several is rounded once.
    const at::TensorOptions like = extra.stretches.front().param->gradient.options();
    extra.buffer = at::empty({total}, like.dtype() == at::kDouble ? like : like.dtype(at::kFloat));
  }
  std::int64_t at = 0;
  const auto part = [](const ExtraSum::BucketSlice& stretch) {
    return stretch.param->gradient.view({-1}).narrow(0, stretch.begin, stretch.count);
  };
  for (const auto& stretch : extra.stretches) {
    extra.buffer.narrow(0, at, stretch.count).copy_(part(stretch));
    at += stretch.count;
  }
  extra.group->all_reduce(device::to_buffer(extra.buffer), comm::Reduce::kSum).wait();
  at = 0;
  for (const auto& stretch : extra.stretches) {
    part(stretch).copy_(extra.buffer.narrow(0, at, stretch.count));
    at += stretch.count;
  }
}

void count_once(nn::Params& owned, const layout::Mesh& mesh, int rank, const layout::AxisNames& axes) {
  for (nn::Param& param : owned) {
    std::vector<layout::Range> ranges;
    bool all = true;
    layout::Index at = 0;
    for (const layout::Piece& piece : param.placement.pieces) {
      const layout::Index size = piece.box.elements() + piece.padding;
      layout::AxisNames copies;
      for (const std::string& axis : piece.replica_axes) {
        // Of an axis that `axes` names in part, the rest is not among them.
        const bool within = std::ranges::any_of(
            axes, [&](const std::string& summed) { return summed == axis || summed == base_of(axis); });
        if (within) copies.push_back(axis);
      }
      if (layout::is_first_copy(mesh, rank, copies)) {
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
}

}  // namespace trireme::parallel
