#include "trireme/parallel/first_micro_norms.h"

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "trireme/base/error.h"
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

FirstMicroNorms::FirstMicroNorms(nn::Params& params, const BucketPlan& plan, MeshGroups& groups,
                                 FirstMicroOptions options)
    : options_(std::move(options)) {
  const layout::Mesh& mesh = groups.mesh();
  std::map<layout::AxisNames, std::size_t> numbers;
  layout::AxisNames present = mesh.wide_axes();
  for (nn::Param& param : params) {
    if (!param.trainable) continue;
    Part part{.trainable = trainables_++, .elements = c10::multiply_integers(nn::local_shape(param.placement))};
    present = layout::subtract(mesh, present, param.placement.absent_axes);
    const layout::AxisNames& in_bucket = plan.buckets[plan.bucket_of.at(&param)].axes;
    // Copies that have the same small batch: what is summed along `rows` is one gradient on all of them.
    const layout::AxisNames model =
        layout::unite(mesh, layout::subtract(mesh, mesh.wide_axes(), in_bucket), options_.rows);
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
    if (const auto tied = options_.tied.find(param.name); tied != options_.tied.end()) {
      TRIREME_CHECK(part.sliced.empty(), "{} is tied over stages and a sum over other ranks too", param.name);
      part.tied = tied->second;
      if (part.tied->rank() > 0) part.counted.clear();  // the first holder counts the sum
    }
    part_of_[&param] = parts_.size();
    parts_.emplace_back(&param, std::move(part));
  }
  std::vector<layout::AxisNames> wanted{present, options_.rows};
  for (const Slice& slice : slices_) wanted.push_back(slice.axes);
  groups.agree_on(wanted);
  everyone_ = groups.along(present);
  rows_ = groups.along(options_.rows);
  for (Slice& slice : slices_) slice.group = groups.along(slice.axes);
}

void FirstMicroNorms::begin_step() {
  if (!std::exchange(ended_, false)) return;
  measured_.clear();
  for (auto& [param, part] : parts_) part.others = false;
}

/// The sum over the ranks that have the same rows, in memory of its own where there are others.
at::Tensor FirstMicroNorms::over_rows(const at::Tensor& gradient) const {
  if (rows_ == nullptr) return gradient;
  at::Tensor sum = gradient.to(options_.buffers.dtype().toScalarType(), /*non_blocking=*/false, /*copy=*/true);
  rows_->all_reduce(device::to_buffer(sum), comm::Reduce::kSum).wait();
  return sum;
}

void FirstMicroNorms::measure(Part& part, const at::Tensor& flat) {
  const auto view = [&](layout::Range range) { return flat.narrow(0, range.begin, range.end - range.begin); };
  for (const layout::Range& range : part.counted) measured_.push_back({part.trainable, square_of(view(range))});
  for (const Part::Sliced& sliced : part.sliced) {
    Slice& slice = slices_[sliced.slice];
    if (!slice.buffer.defined()) slice.buffer = at::zeros({slice.elements}, options_.buffers);
    slice.buffer.narrow(0, sliced.at, sliced.range.end - sliced.range.begin).copy_(view(sliced.range));
  }
}

void FirstMicroNorms::add(const Bucket& bucket, const at::Tensor& gradient) {
  begin_step();
  const at::Tensor sum = over_rows(gradient);
  for (const BucketMember& member : bucket.members) {
    const auto found = part_of_.find(member.param);
    if (found != part_of_.end()) measure(parts_[found->second].second, view_in(sum, member).reshape({-1}));
  }
}

void FirstMicroNorms::added(const nn::Param& param, bool first) {
  begin_step();
  const auto found = part_of_.find(&param);
  if (found == part_of_.end()) return;
  Part& part = parts_[found->second].second;
  if (!first) {
    part.others = true;
    return;
  }
  if (part.others) {
    throw ConfigError(
        fmt::format("{} has gradients of other micro-batches before those of the first are complete, and the gradient "
                    "noise scale measures the first alone",
                    param.name),
        "set pipeline.schedule = \"1f1b\", or train.noise_scale = false");
  }
  const at::Tensor sum = over_rows(param.gradient.reshape({-1}));
  if (part.tied != nullptr) {
    part.buffer = sum.to(options_.buffers.dtype().toScalarType(), /*non_blocking=*/false, /*copy=*/true);
    return;
  }
  // A layer that is used twice adds twice: what counts is the sum.
  std::erase_if(measured_, [&](const Measured& one) { return one.trainable == part.trainable; });
  measure(part, sum);
}

std::vector<double> FirstMicroNorms::take(double factor) {
  std::vector<double> squares(trainables_);
  for (Slice& slice : slices_) {
    if (slice.group == nullptr) continue;
    if (!slice.buffer.defined()) slice.buffer = at::zeros({slice.elements}, options_.buffers);  // without rows
    slice.group->all_reduce(device::to_buffer(slice.buffer), comm::Reduce::kSum).wait();
  }
  for (auto& [param, part] : parts_) {  // in one order on all holders of a tied one
    if (part.tied == nullptr) continue;
    if (!part.buffer.defined()) part.buffer = at::zeros({part.elements}, options_.buffers);  // without rows
    part.tied->all_reduce(device::to_buffer(part.buffer), comm::Reduce::kSum).wait();
    measure(part, part.buffer);
    part.buffer = at::Tensor();
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
