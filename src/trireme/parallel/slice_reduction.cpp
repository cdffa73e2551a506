#include "trireme/parallel/slice_reduction.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>

#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/mesh.h"
#include "trireme/layout/reduction.h"

namespace trireme::parallel {

std::vector<SliceReduction> find_slices(nn::Params& params, nn::Params& owned, const BucketPlan& plan,
                                        const layout::Mesh& mesh) {
  std::map<layout::AxisNames, SliceReduction> found;
  auto mine = owned.begin();  // in the order of params
  for (const nn::Param& param : params) {
    nn::Param& kept = *mine++;
    if (!kept.trainable) continue;
    const layout::AxisNames& in_bucket = plan.buckets[plan.bucket_of.at(&param)].axes;
    for (const layout::Reduction& stretch : layout::reduction_axes(mesh, kept.placement, kept.equal_axes)) {
      layout::AxisNames axes = layout::subtract(mesh, stretch.axes, in_bucket);
      if (axes.empty()) continue;
      std::ranges::sort(axes);
      found.try_emplace(axes, axes).first->second.add(kept, stretch.local);
    }
  }
  std::vector<SliceReduction> slices;
  for (auto& [axes, slice] : found) slices.push_back(std::move(slice));
  return slices;
}

void SliceReduction::sum() {
  std::int64_t total = 0;
  for (const Slice& slice : slices_) total += slice.range.end - slice.range.begin;
  if (!buffer_.defined()) {
    // In full, whatever types gradients are kept in: a sum of several is rounded once.
    const at::TensorOptions like = slices_.front().param->gradient.options();
    buffer_ = at::empty({total}, like.dtype() == at::kDouble ? like : like.dtype(at::kFloat));
  }
  const auto each = [this](const auto& visit) {
    std::int64_t at = 0;
    for (const Slice& slice : slices_) {
      const std::int64_t count = slice.range.end - slice.range.begin;
      visit(slice.param->gradient.view({-1}).narrow(0, slice.range.begin, count), buffer_.narrow(0, at, count));
      at += count;
    }
  };
  each([](const at::Tensor& gradient, const at::Tensor& part) { part.copy_(gradient); });
  group_->all_reduce(device::to_buffer(buffer_), comm::Reduce::kSum).wait();
  each([](const at::Tensor& gradient, const at::Tensor& part) { gradient.copy_(part); });
}

std::int64_t SliceReduction::elements(int ranks) const {
  if (group_ == nullptr || group_->size() != ranks) return 0;
  std::int64_t total = 0;
  for (const Slice& slice : slices_) total += slice.range.end - slice.range.begin;
  return total;
}

}  // namespace trireme::parallel
