#include "trireme/parallel/first_micro_norms.h"

#include <ATen/ops/empty_like.h>
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

bool is_expert(const nn::Param& param) { return param.name.find(".experts.") != std::string::npos; }

/// How often may differ between the ranks that share rows (passes of experts, blocks of keys that a rank sees of T5's
/// biases): such sums go over these ranks once, at the end of the step.
bool adds_several_times(const nn::Param& param, const auto& part, bool in_parts) {
  return part.tied != nullptr || param.uses > 1 || in_parts || part.in_passes ||
         param.name.ends_with("relative_bias.weight");
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
    part.experts = !layout::subtract(mesh, options_.experts, in_bucket).empty();
    of_experts_.push_back(part.experts);
    part.in_passes = !options_.experts_lead && is_expert(param);
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
      part.tied = tied->second;
      if (part.tied->rank() > 0) {  // the first holder counts the sum
        part.counted.clear();
        for (Part::Sliced& sliced : part.sliced) sliced.counted = false;
      }
    }
    part_of_[&param] = parts_.size();
    parts_.emplace_back(&param, std::move(part));
  }
  const layout::AxisNames rows_of_experts = layout::subtract(mesh, options_.rows, options_.experts);
  std::vector<layout::AxisNames> wanted{present, options_.rows, rows_of_experts};
  for (const Slice& slice : slices_) wanted.push_back(slice.axes);
  groups.agree_on(wanted);
  everyone_ = groups.along(present);
  rows_ = groups.along(options_.rows);
  rows_of_experts_ = groups.along(rows_of_experts);
  for (Slice& slice : slices_) slice.group = groups.along(slice.axes);
}

void FirstMicroNorms::begin_step() {
  if (!std::exchange(ended_, false)) return;
  measured_.clear();
  for (auto& [param, part] : parts_) {
    part.others = part.watched = false;
    part.sum = at::Tensor();
  }
}

/// The sum over the ranks that have the same rows, in memory of its own where there are others.
at::Tensor FirstMicroNorms::over_rows(const at::Tensor& gradient, bool experts) const {
  comm::Group* rows = experts ? rows_of_experts_ : rows_;
  if (rows == nullptr) return gradient;
  at::Tensor sum = gradient.to(options_.buffers.dtype().toScalarType(), /*non_blocking=*/false, /*copy=*/true);
  rows->all_reduce(device::to_buffer(sum), comm::Reduce::kSum).wait();
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
  const auto of_first = part_of_.find(bucket.members.front().param);  // a bucket's are reduced over the same ranks
  const at::Tensor sum = over_rows(gradient, of_first != part_of_.end() && parts_[of_first->second].second.experts);
  for (const BucketMember& member : bucket.members) {
    const auto found = part_of_.find(member.param);
    if (found != part_of_.end()) measure(parts_[found->second].second, view_in(sum, member).reshape({-1}));
  }
}

bool FirstMicroNorms::waits_for_passes(const nn::Param& param) const {
  return options_.experts_lead && is_expert(param);
}

void FirstMicroNorms::before(nn::Param& param) {
  begin_step();
  const auto found = part_of_.find(&param);
  if (found == part_of_.end() || param.gradient_empty || waits_for_passes(param)) return;
  parts_[found->second].second.set_aside = std::exchange(param.gradient, at::empty_like(param.gradient));
  param.gradient_empty = true;
}

void FirstMicroNorms::after(nn::Param& param) {
  const auto found = part_of_.find(&param);
  if (found == part_of_.end() || waits_for_passes(param)) return;
  Part& part = parts_[found->second].second;
  part.watched = true;
  if (param.gradient_empty) param.gradient.zero_();  // the layer had nothing to add
  const at::Tensor flat = param.gradient.reshape({-1});
  if (!adds_several_times(param, part, options_.parts)) {
    measure(part, over_rows(flat, part.experts));
  } else if (part.sum.defined()) {
    part.sum.add_(flat);
  } else {
    part.sum = flat.to(options_.buffers.dtype().toScalarType(), /*non_blocking=*/false, /*copy=*/true);
  }
  if (!part.set_aside.defined()) return;
  part.set_aside.add_(param.gradient);
  param.gradient = std::exchange(part.set_aside, at::Tensor());
  param.gradient_empty = false;
}

void FirstMicroNorms::added(const nn::Param& param, bool first) {
  begin_step();
  const auto found = part_of_.find(&param);
  if (found == part_of_.end()) return;
  Part& part = parts_[found->second].second;
  if (part.watched && first) return;
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
  const at::Tensor flat = param.gradient.reshape({-1});
  if (part.tied != nullptr) {
    part.sum = flat.to(options_.buffers.dtype().toScalarType(), /*non_blocking=*/false, /*copy=*/true);
    return;
  }
  const at::Tensor sum = over_rows(flat, part.experts);
  // A layer that is used twice adds twice: what counts is the sum.
  std::erase_if(measured_, [&](const Measured& one) { return one.trainable == part.trainable; });
  measure(part, sum);
}

/// Sums over holders go by name: stages list the parameters that they share, such as T5's embedding and relative
/// biases, each in the order of its own layers.
void FirstMicroNorms::sum_tied() {
  std::map<std::string_view, Part*> tied;
  for (auto& [param, part] : parts_) {
    if (part.tied != nullptr) tied[param->name] = &part;
  }
  for (auto& [name, part] : tied) {
    if (!part->sum.defined()) part->sum = at::zeros({part->elements}, options_.buffers);  // without rows
    part->tied->all_reduce(device::to_buffer(part->sum), comm::Reduce::kSum).wait();
  }
  for (auto& [param, part] : parts_) {
    const bool measured = waits_for_passes(*param) && part.tied == nullptr;  // by added()
    if (!options_.overlaps || measured || !adds_several_times(*param, part, options_.parts)) continue;
    if (!part.sum.defined()) part.sum = at::zeros({part.elements}, options_.buffers);
    measure(part, over_rows(part.sum, part.experts));
    part.sum = at::Tensor();
  }
}

std::vector<double> FirstMicroNorms::take(FirstMicroFactors factors) {
  std::vector<double> squares(trainables_);
  sum_tied();
  for (Slice& slice : slices_) {
    if (slice.group == nullptr) continue;
    if (!slice.buffer.defined()) slice.buffer = at::zeros({slice.elements}, options_.buffers);  // without rows
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
    for (std::size_t i = 0; i < measured_.size(); ++i) {
      const std::size_t at = measured_[i].trainable;
      squares[at] += (of_experts_[at] ? factors.experts : factors.dense) * numbers[i];
    }
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
