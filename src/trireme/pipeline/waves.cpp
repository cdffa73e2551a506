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
  TRIREME_CHECK(parts_.table.routes.size() == 1, "a table of {} virtual workers; each executes its own",
                parts_.table.routes.size());
  for (std::size_t i = 0; i < parts_.chunk.params.size(); ++i) {
    index_[parts_.chunk.params[i]] = i;
    bytes_ += static_cast<std::int64_t>(parts_.chunk.params[i]->value.nbytes());
  }
  std::size_t shared = 0;
  for (const WaveShare& share : parts_.shares) shared += share.params.size();
  TRIREME_CHECK(shared == index_.size(), "{} of {} parameters of a stage are summed", shared, index_.size());
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
  comm::Batch sums;
  for (std::size_t i = 0; i < parts_.stage_sums.size(); ++i) {
    for (const StageSum& sum : parts_.stage_sums[i]) {
      const std::int64_t count = sum.local.end - sum.local.begin;
      at::Tensor part =
          gradients[i].defined() ? gradients[i].view({-1}).narrow(0, sum.local.begin, count) : at::Tensor();
      if (part.defined()) sums.add(sum.ranks->all_reduce(device::to_buffer(part), comm::Reduce::kSum));
    }
  }
  sums.commit().wait();
  add_into(wave(minibatch / monitor_.law.minibatches).all, gradients);
  returned_.emplace_back(minibatch, std::move(gradients));
}

void WaveWeights::push() {
  Wave& next = wave(pushed_++);
  next.is_pushed = true;
  ++pushes_;
  for (const WaveShare& share : parts_.shares) {
    Sent& sent = next.sent.emplace_back();
    std::int64_t elements = 0;
    const at::Tensor* first = nullptr;
    for (const std::size_t i : share.params) {
      if (!next.all[i].defined()) continue;
      elements += next.all[i].numel();
      if (first == nullptr) first = &next.all[i];
    }
    if (first == nullptr) continue;
    sent.flat = at::empty({elements}, parts_.reduce_bf16 ? first->options().dtype(at::kBFloat16) : first->options());
    std::int64_t at = 0;
    for (const std::size_t i : share.params) {
      const at::Tensor& sum = next.all[i];
      if (!sum.defined()) continue;
      sent.flat.narrow(0, at, sum.numel()).copy_(sum.reshape({-1}));
      at += sum.numel();
    }
    if (share.ranks != nullptr) sent.work = share.ranks->all_reduce(device::to_buffer(sent.flat), comm::Reduce::kSum);
  }
  next.all.clear();
}

void WaveWeights::pull() {
  TRIREME_CHECK(!waves_.empty() && waves_.front().is_pushed, "wave {} was not pushed", pulled_);
  for (std::size_t share = 0; share < parts_.shares.size(); ++share) {
    Sent& sent = waves_.front().sent[share];
    if (parts_.shares[share].ranks != nullptr && sent.flat.defined()) sent.work.wait();
    std::int64_t at = 0;
    for (const std::size_t i : parts_.shares[share].params) {
      nn::Param& param = *parts_.chunk.params[i];
      if (!param.trainable) continue;
      at::Tensor& gradient = nn::gradient_to_add_to(param);
      gradient.copy_(sent.flat.narrow(0, at, gradient.numel()).view(gradient.sizes()));
      at += gradient.numel();
    }
  }
}

void WaveWeights::pulled() {
  for (nn::Param* param : parts_.chunk.params) param->gradient_empty = true;
  waves_.pop_front();
  ++pulled_;
}

}  // namespace trireme::pipeline
