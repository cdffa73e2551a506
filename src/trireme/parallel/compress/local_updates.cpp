#include "trireme/parallel/compress/local_updates.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <chrono>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/parallel/compress/compressed_reducer.h"

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
      local_(parts.plan, parts.groups, parts.options.copies),
      groups_(parts.groups) {
  TRIREME_CHECK(options_.zero == 0 && !options_.offload,
                "ZeRO {} or offload with local updates is refused by spec/rules", options_.zero);
  const layout::Mesh& mesh = groups_.mesh();
  std::vector<layout::AxisNames> wanted{options_.copies};
  for (const Bucket& bucket : plan_.buckets) {
    TRIREME_CHECK(!bucket.trainable || layout::subtract(mesh, options_.copies, bucket.axes).empty(),
                  "not every copy has {}", bucket.members.front().param->name);
    wanted.push_back(layout::subtract(mesh, bucket.axes, options_.copies));
  }
  groups_.agree_on(wanted);
  exchange_ = CopyExchange(groups_.along(options_.copies));
  for (std::size_t i = 0; i < plan_.buckets.size(); ++i) inside_.push_back(groups_.along(wanted[i + 1]));
}

comm::Group* LocalUpdates::inside_of(const Bucket& bucket) const {
  return inside_[static_cast<std::size_t>(&bucket - plan_.buckets.data())];
}

std::string LocalUpdates::description() const {
  std::string text = "gradient of a copy's own tokens";
  const int inside = groups_.mesh().group_size(layout::subtract(groups_.mesh(), options_.data, options_.copies));
  if (inside > 1) text += fmt::format(" -> dense sum over {} ranks", inside);
  text += fmt::format(" -> a copy's norm, clip -> optimizer -> {}; {} copies", method(), exchange_.copies());
  if (config().start > 0) text += fmt::format(", synchronous until step {}", config().start);
  return text;
}

double LocalUpdates::sent_bytes(const Bucket& bucket, int /*launches*/) const {
  if (!bucket.trainable) return 0;
  const auto elements = static_cast<double>(bucket.elements);
  const auto width = static_cast<double>(c10::elementSize(bucket.gradient_type));
  const comm::Group* inside = inside_of(bucket);
  const double dense = inside != nullptr ? 2.0 * (inside->size() - 1) / inside->size() * elements * width : 0;
  return dense + round_bytes(elements, width) / static_cast<double>(interval());
}

std::vector<CompressedPart> LocalUpdates::compressed_parts() const {
  std::vector<CompressedPart> parts;
  for (const nn::Param* param : local_.params()) {
    const std::int64_t elements = layout::local_elements(param->placement);
    parts.push_back({.name = param->name,
                     .placement = param->placement,
                     .rows = 1,
                     .columns = elements,
                     .shard = shard_of(groups_, options_, *param),
                     .copies = exchange_.copies(),
                     .first = is_first_of_copies(groups_, options_, *param)});
  }
  return parts;
}

void LocalUpdates::begin_step(std::int64_t step) { step_ = step; }

void LocalUpdates::launch(Bucket& bucket) {
  if (is_synchronous()) return dense_->launch(bucket);
  if (comm::Group* inside = inside_of(bucket))
    bucket.work = inside->all_reduce(device::to_buffer(bucket.sending), comm::Reduce::kSum);
}

void LocalUpdates::settle(Bucket& bucket) {
  const double dense = dense_->sent_bytes(bucket, 1);
  report_.dense_bytes += dense;
  if (is_synchronous()) {
    report_.sent_bytes += dense;
    return dense_->settle(bucket);
  }
  if (const comm::Group* inside = inside_of(bucket)) {
    bucket.work.wait();
    bucket.work = {};
    report_.sent_bytes += 2.0 * (inside->size() - 1) / inside->size() * static_cast<double>(bucket.sending.nbytes());
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
    const auto begin = std::chrono::steady_clock::now();
    after_step(step_ - config().start + 1, taken.learning_rate);
    const double seconds = seconds_since(begin);
    report_.seconds += seconds;
    report_.update_seconds += seconds;
    report_.kernel_seconds += seconds - exchange_.take_waited_seconds();
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
