#include "trireme/pipeline/waves.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"

namespace trireme::pipeline {
namespace {

void add_into(std::vector<at::Tensor>& sum, const std::vector<at::Tensor>& more) {
  if (sum.empty()) {
    for (const at::Tensor& tensor : more) sum.push_back(tensor.defined() ? tensor.clone() : tensor);
    return;
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (sum[i].defined()) sum[i].add_(more[i]);
  }
}

}  // namespace

WaveWeights::WaveWeights(Parts parts) : parts_(std::move(parts)), monitor_{.law = schedule::WaveLaw::of(parts_.table)} {
  TRIREME_CHECK(parts_.table.routes.size() == 1, "a table of {} virtual workers; each walks its own",
                parts_.table.routes.size());
  for (std::size_t i = 0; i < parts_.chunk.params.size(); ++i) {
    index_[parts_.chunk.params[i]] = i;
    bytes_ += static_cast<std::int64_t>(parts_.chunk.params[i]->value.nbytes());
  }
}

void WaveWeights::begin() {
  TRIREME_CHECK(in_flight_.empty(), "{} minibatches are in flight", in_flight_.size());
  waves_.clear();
  returned_.clear();
  pulled_ = pushed_ = 0;
}

WaveWeights::Wave& WaveWeights::wave(int number) {
  while (number - pulled_ >= static_cast<int>(waves_.size())) waves_.emplace_back();
  return waves_[static_cast<std::size_t>(number - pulled_)];
}

/// Minibatches before `until` count in weights from now on; those of waves that were pulled are in them already.
void WaveWeights::learn_own(int until) {
  for (; !returned_.empty() && returned_.front().first < until; returned_.pop_front()) {
    const int number = returned_.front().first / monitor_.law.minibatches;
    if (number >= pulled_) add_into(wave(number).own, returned_.front().second);
  }
}

WaveWeights::Copy WaveWeights::values_now() const {
  Copy values;
  for (std::size_t i = 0; i < parts_.chunk.params.size(); ++i) {
    const nn::Param& param = *parts_.chunk.params[i];
    at::Tensor value = param.trainable ? param.master.clone() : param.value;
    for (std::size_t at = 0; param.trainable && at < waves_.size(); ++at) {
      const Copy& own = waves_[at].own;
      if (!own.empty()) value.add_(own[i], -parts_.rate_of(pulled_ + static_cast<int>(at)));
    }
    values.push_back(value.to(param.value.scalar_type()));
  }
  return values;
}

nn::WeightSource* WaveWeights::take(int minibatch) {
  if (const auto found = in_flight_.find(minibatch); found != in_flight_.end()) return &found->second;
  const int own = monitor_.law.own_until(minibatch);
  learn_own(own);
  monitor_.met(minibatch, pulled_, own);
  InFlight& made = in_flight_[minibatch];
  made.index = &index_;
  made.values = values_now();
  max_bytes_ = std::max(max_bytes_, bytes_ * static_cast<std::int64_t>(in_flight_.size()));
  return &made;
}

void WaveWeights::returned(int minibatch) {
  TRIREME_CHECK(in_flight_.erase(minibatch) == 1, "minibatch {} is not in flight", minibatch);
  Copy gradients;
  for (nn::Param* param : parts_.chunk.params) {
    if (!param->trainable) {
      gradients.emplace_back();
      continue;
    }
    gradients.push_back(param->gradient_empty ? at::zeros_like(param->master) : param->gradient.clone());
    param->gradient_empty = true;
  }
  add_into(wave(minibatch / monitor_.law.minibatches).all, gradients);
  returned_.emplace_back(minibatch, std::move(gradients));
}

void WaveWeights::push() {
  Wave& next = wave(pushed_++);
  std::int64_t elements = 0;
  for (const at::Tensor& sum : next.all) elements += sum.defined() ? sum.numel() : 0;
  const auto first = std::ranges::find_if(next.all, [](const at::Tensor& sum) { return sum.defined(); });
  next.is_pushed = true;
  ++pushes_;
  if (first == next.all.end()) return;
  next.sent = at::empty({elements}, first->options());
  std::int64_t at = 0;
  for (const at::Tensor& sum : next.all) {
    if (!sum.defined()) continue;
    next.sent.narrow(0, at, sum.numel()).copy_(sum.reshape({-1}));
    at += sum.numel();
  }
  next.all.clear();
  if (parts_.workers != nullptr) {
    next.work = parts_.workers->all_reduce(device::to_buffer(next.sent), comm::Reduce::kSum);
  }
}

void WaveWeights::pull() {
  TRIREME_CHECK(!waves_.empty() && waves_.front().is_pushed, "wave {} was not pushed", pulled_);
  Wave& oldest = waves_.front();
  if (parts_.workers != nullptr && oldest.sent.defined()) oldest.work.wait();
  std::int64_t at = 0;
  for (nn::Param* param : parts_.chunk.params) {
    if (!param->trainable) continue;
    at::Tensor& gradient = nn::gradient_to_add_to(*param);
    gradient.copy_(oldest.sent.narrow(0, at, gradient.numel()).view(gradient.sizes()));
    at += gradient.numel();
  }
}

void WaveWeights::pulled() {
  for (nn::Param* param : parts_.chunk.params) param->gradient_empty = true;
  waves_.pop_front();
  ++pulled_;
}

}  // namespace trireme::pipeline
