#include "trireme/parallel/compress/local_updates.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::parallel {

at::Tensor flatten_all(std::span<const at::Tensor> tensors) {
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  if (tensors.empty()) return at::empty({0});
  at::Tensor flat = at::empty({elements}, tensors.front().options());
  std::int64_t at = 0;
  for (const at::Tensor& tensor : tensors) {
    flat.narrow(0, at, tensor.numel()).copy_(tensor.view({-1}));
    at += tensor.numel();
  }
  return flat;
}

void unflatten_all(const at::Tensor& flat, std::span<at::Tensor> tensors) {
  std::int64_t at = 0;
  for (at::Tensor& tensor : tensors) {
    tensor.view({-1}).copy_(flat.narrow(0, at, tensor.numel()));
    at += tensor.numel();
  }
}

LocalUpdates::LocalUpdates(const ReducerParts& parts)
    : options_(parts.options),
      plan_(parts.plan),
      dense_(make_dense_reducer(parts)),
      exchange_(nullptr),
      local_(parts.plan, parts.groups, parts.options.copies) {
  TRIREME_CHECK(options_.zero == 0 && !options_.offload,
                "ZeRO {} or offload with local updates is refused by spec/rules", options_.zero);
  const layout::AxisNames inside = layout::subtract(parts.groups.mesh(), options_.data, options_.copies);
  parts.groups.agree_on({options_.copies, inside});
  exchange_ = CopyExchange(parts.groups.along(options_.copies));
  inside_ = parts.groups.along(inside);
  const layout::Mesh& mesh = parts.groups.mesh();
  shard_ = mesh.index_in_group(parts.groups.rank(), layout::subtract(mesh, mesh.wide_axes(), options_.data));
}

std::string LocalUpdates::description() const {
  std::string text = "gradient of a copy's own tokens";
  if (inside_ != nullptr) text += fmt::format(" -> dense sum over {} ranks", inside_->size());
  text += fmt::format(" -> a copy's norm, clip -> optimizer -> {}; {} copies", method(), exchange_.copies());
  if (config().start > 0) text += fmt::format(", synchronous until step {}", config().start);
  return text;
}

double LocalUpdates::sent_bytes(const Bucket& bucket, int /*launches*/) const {
  if (!bucket.trainable) return 0;
  const auto elements = static_cast<double>(bucket.elements);
  const auto width = static_cast<double>(c10::elementSize(bucket.gradient_type));
  const double inside = inside_ != nullptr ? 2.0 * (inside_->size() - 1) / inside_->size() * elements * width : 0;
  return inside + round_bytes(elements, width) / static_cast<double>(interval());
}

std::vector<CompressedPart> LocalUpdates::compressed_parts() const {
  std::vector<CompressedPart> parts;
  for (const nn::Param* param : local_.params()) {
    const std::int64_t elements = layout::local_elements(param->placement);
    parts.push_back(
        {.name = param->name, .placement = param->placement, .rows = 1, .columns = elements, .shard = shard_});
  }
  return parts;
}

void LocalUpdates::begin_step(std::int64_t step) { step_ = step; }

void LocalUpdates::launch(Bucket& bucket) {
  if (is_synchronous()) return dense_->launch(bucket);
  if (inside_ != nullptr) bucket.work = inside_->all_reduce(device::to_buffer(bucket.sending), comm::Reduce::kSum);
}

void LocalUpdates::settle(Bucket& bucket) {
  const double dense = dense_->sent_bytes(bucket, 1);
  report_.dense_bytes += dense;
  if (is_synchronous()) {
    report_.sent_bytes += dense;
    return dense_->settle(bucket);
  }
  if (inside_ != nullptr) {
    bucket.work.wait();
    bucket.work = {};
    report_.sent_bytes += 2.0 * (inside_->size() - 1) / inside_->size() * static_cast<double>(bucket.sending.nbytes());
  }
  // Gradients are parts of the mean over the tokens of all copies; a copy's own mean is so many times larger.
  bucket.sending.mul_(exchange_.copies());
  bucket.arriving = bucket.sending;
}

void LocalUpdates::finish(std::span<Bucket> buckets) {
  if (is_synchronous()) dense_->finish(buckets);
}

void LocalUpdates::step_taken(const TakenStep& taken) {
  if (is_synchronous()) {
    start_from(params());
  } else {
    after_step(step_ - config().start + 1, taken.learning_rate);
  }
  local_.take();
}

void LocalUpdates::attach(optim::Optimizer&) {
  local_.take();
  start_from(params());
}

void LocalUpdates::loaded(nn::Params& /*owned*/) { local_.give_back(); }

void LocalUpdates::add_state(nn::State& state) { local_.add_state(state); }

void LocalUpdates::count_round(std::int64_t elements) {
  ++report_.rounds;
  report_.elements += elements;
  report_.sent_bytes += exchange_.take_sent_bytes();
}

}  // namespace trireme::parallel
