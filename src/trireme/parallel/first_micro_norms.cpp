#include "trireme/parallel/first_micro_norms.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "trireme/device/tensor_buffer.h"
#include "trireme/kernels/update.h"
#include "trireme/layout/mesh.h"
#include "trireme/layout/reduction.h"

namespace trireme::parallel {
namespace {

/// double [1] where the tensor is; nobody waits for a GPU.
at::Tensor square_of(const at::Tensor& tensor) {
  const at::Tensor* one = &tensor;
  if (tensor.is_cuda()) return kernels::sums_of_squares_on_device({&one, 1});
  return at::full({1}, kernels::sum_of_squares(tensor), at::kDouble);
}

}  // namespace

FirstMicroNorms::FirstMicroNorms(nn::Params& params, const BucketPlan& plan, MeshGroups& groups) {
  const layout::Mesh& mesh = groups.mesh();
  std::map<layout::AxisNames, std::size_t> numbers;
  layout::AxisNames present = mesh.wide_axes();
  for (nn::Param& param : params) {
    if (!param.trainable) continue;
    Part part{.trainable = trainables_++};
    present = layout::subtract(mesh, present, param.placement.absent_axes);
    const layout::AxisNames& in_bucket = plan.buckets[plan.bucket_of.at(&param)].axes;
    const layout::AxisNames model = layout::subtract(mesh, mesh.wide_axes(), in_bucket);
    for (const layout::Reduction& stretch : layout::reduction_axes(mesh, param.placement, param.equal_axes)) {
      if (stretch.local.begin == stretch.local.end) continue;
      // Copies within one replica of the model: those along other axes have other rows.
      const layout::Piece* piece = layout::piece_at(param.placement, stretch.local.begin);
      const bool first = piece == nullptr || layout::is_first_copy(mesh, groups.rank(),
                                                                   layout::intersect(mesh, piece->replica_axes, model));
      layout::AxisNames axes = layout::subtract(mesh, stretch.axes, in_bucket);
      if (axes.empty()) {
        if (first) part.counted.push_back(stretch.local);
        continue;
      }
      std::ranges::sort(axes);
      const auto [found, is_new] = numbers.try_emplace(axes, slices_.size());
      if (is_new) slices_.push_back({.axes = axes});
      Slice& slice = slices_[found->second];
      part.sliced.push_back({found->second, stretch.local, slice.elements, first});
      slice.elements += stretch.local.end - stretch.local.begin;
    }
    parts_.emplace_back(&param, std::move(part));
  }
  std::vector<layout::AxisNames> wanted{present};
  for (const Slice& slice : slices_) wanted.push_back(slice.axes);
  groups.agree_on(wanted);
  everyone_ = groups.along(present);
  for (Slice& slice : slices_) slice.group = groups.along(slice.axes);
}

void FirstMicroNorms::add(const Bucket& bucket, const at::Tensor& gradient) {
  if (std::exchange(ended_, false)) measured_.clear();
  for (const BucketMember& member : bucket.members) {
    const auto found = std::ranges::find(parts_, member.param, [](const auto& entry) { return entry.first; });
    if (found == parts_.end()) continue;
    const at::Tensor flat = view_in(gradient, member).reshape({-1});
    const auto view = [&](layout::Range range) { return flat.narrow(0, range.begin, range.end - range.begin); };
    for (const layout::Range& range : found->second.counted)
      measured_.push_back({found->second.trainable, square_of(view(range))});
    for (const Part::Sliced& sliced : found->second.sliced) {
      Slice& slice = slices_[sliced.slice];
      if (!slice.buffer.defined()) {
        const bool wide = gradient.scalar_type() == at::kDouble;
        slice.buffer = at::zeros({slice.elements}, gradient.options().dtype(wide ? at::kDouble : at::kFloat));
      }
      slice.buffer.narrow(0, sliced.at, sliced.range.end - sliced.range.begin).copy_(view(sliced.range));
    }
  }
}

std::vector<double> FirstMicroNorms::take(double factor) {
  std::vector<double> squares(trainables_);
  for (Slice& slice : slices_) {
    if (slice.group == nullptr) continue;
    if (!slice.buffer.defined()) {  // a rank without rows
      const at::Tensor& like = parts_.front().first->master;
      const bool wide = like.defined() && like.scalar_type() == at::kDouble;
      slice.buffer = at::zeros({slice.elements}, at::TensorOptions(wide ? at::kDouble : at::kFloat)
                                                     .device(like.defined() ? like.device() : at::Device(at::kCPU)));
    }
    slice.group->all_reduce(device::to_buffer(slice.buffer), comm::Reduce::kSum).wait();
  }
  for (const auto& [param, part] : parts_) {
    for (const Part::Sliced& sliced : part.sliced) {
      const Slice& slice = slices_[sliced.slice];
      if (!sliced.counted) continue;
      measured_.push_back(
          {part.trainable, square_of(slice.buffer.narrow(0, sliced.at, sliced.range.end - sliced.range.begin))});
    }
  }
  if (!measured_.empty()) {
    std::vector<at::Tensor> all;
    for (const Measured& one : measured_) all.push_back(one.square.select(0, 0));
    const at::Tensor here = at::stack(all).cpu();
    const double* numbers = here.const_data_ptr<double>();
    for (std::size_t i = 0; i < measured_.size(); ++i) squares[measured_[i].trainable] += factor * numbers[i];
  }
  measured_.clear();
  for (Slice& slice : slices_) {
    if (slice.buffer.defined()) slice.buffer.zero_();
  }
  if (everyone_ != nullptr && !squares.empty())
    everyone_->all_reduce(comm::Buffer{squares.data(), squares.size(), comm::DType::kF64}, comm::Reduce::kSum).wait();
  return squares;
}

}  // namespace trireme::parallel
