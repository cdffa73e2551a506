// Local updates of the twin: steps that each copy takes by itself, and the rounds in which their weights meet.
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/nn/state.h"
#include "trireme/parallel/compress/delta_code.h"
#include "trireme/parallel/compress/outer_step.h"
#include "trireme/train/diagnose/compression_twin_state.h"

namespace trireme::train {

namespace {
using spec::CompressKind;
}

void CompressionTwin::local_step(const std::vector<CopyStep>& copies, double rate) {
  const bool synchronous = step_ < config_.start;
  NamedTensors sums;
  if (synchronous) {
    for (const auto& [name, gradient] : copies.front().gradients) {
      sums[name] = gradient.clone();
      for (std::size_t i = 1; i < copies.size(); ++i) sums[name].add_(copies[i].gradients.at(name));
    }
  }
  if (step_ == 0) trace_.gradients.resize(copies.size());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    NamedTensors own = sums;
    if (!synchronous) {
      for (const auto& [name, gradient] : copies[i].gradients) own[name] = gradient.mul(request_.copies);
    }
    if (step_ == 0) trace_.gradients[i] = own;
    load(weights_[i]);
    const double norm = update(*optimizers_[i], own, rate);
    if (i == 0) trace_.norms.push_back(norm);
    weights_[i] = masters();
  }
  if (synchronous) {
    anchor_ = mean_of(weights_);
    return;
  }
  if (config_.kind == CompressKind::kLocalSgd) local_sgd_round(rate);
  if (config_.kind == CompressKind::kElasticAveraging) elastic_round();
  if (config_.kind == CompressKind::kDiloco) diloco_rounds();
}

void CompressionTwin::local_sgd_round(double rate) {
  std::int64_t interval = spec::interval_of(config_);
  if (config_.quadratic > 0)
    interval = std::max(interval, static_cast<std::int64_t>(std::pow(config_.quadratic / rate, 2)));
  if (++since_ < interval) return;
  since_ = 0;
  if (config_.average_moments) average_moments();
  const NamedTensors mean = mean_of(weights_);
  for (NamedTensors& copy : weights_) {
    for (auto& [name, weight] : copy) weight = mean.at(name).clone();
  }
}

void CompressionTwin::average_moments() {
  std::vector<NamedTensors> moments;
  for (const auto& optimizer : optimizers_) {
    nn::State state;
    optimizer->add_state(state);
    NamedTensors& mine = moments.emplace_back();
    for (const nn::StateTensor& entry : state.tensors()) mine[entry.name] = entry.tensor;
  }
  if (moments.front().empty()) return;
  const NamedTensors mean = mean_of(moments);
  for (NamedTensors& copy : moments) {
    for (auto& [name, moment] : copy) moment.copy_(mean.at(name));
  }
}

/// In each owner's share by itself: 16 bits, or 8 with a scale for every block.
at::Tensor CompressionTwin::rounded(const at::Tensor& flat) const {
  at::Tensor said = at::zeros_like(flat);
  for (std::int64_t owner = 0; owner < request_.copies; ++owner) {
    const std::int64_t begin = flat.numel() * owner / request_.copies,
                       end = flat.numel() * (owner + 1) / request_.copies;
    if (config_.delta_dtype == spec::DeltaDtype::kFp16) {
      said.narrow(0, begin, end - begin).copy_(flat.narrow(0, begin, end - begin).to(at::kFloat).to(at::kHalf));
      continue;
    }
    for (std::int64_t at = begin; at < end; at += parallel::kDeltaBlock) {
      const std::int64_t size = std::min(parallel::kDeltaBlock, end - at);
      const at::Tensor block = flat.narrow(0, at, size), scale = block.abs().max().div(127);
      if (scale.item<double>() > 0)
        said.narrow(0, at, size).copy_(block.div(scale).round().clamp(-127, 127).mul(scale));
    }
  }
  return said;
}

/// With error feedback at both ends. Every part of a parameter is rounded by itself.
NamedTensors CompressionTwin::rounded_mean(const std::vector<NamedTensors>& deltas) {
  NamedTensors mean;
  for (const auto& [name, delta] : deltas.front()) mean[name] = at::zeros_like(delta);
  for (const parallel::CompressedPart& part : request_.parts) {
    if (!mean.contains(part.name)) continue;
    const auto residual_of = [&](std::size_t copy) -> at::Tensor& {
      return residuals_[copy][fmt::format("{} {}", part.name, part.shard)];
    };
    at::Tensor sum;
    for (std::size_t copy = 0; copy < deltas.size(); ++copy) {
      at::Tensor c = part_of(part, deltas[copy].at(part.name)).reshape({-1}), &residual = residual_of(copy);
      if (residual.defined()) c = c.add(residual);
      const at::Tensor said = rounded(c);
      residual = c.sub(said);
      sum = sum.defined() ? sum.add(said) : said;
    }
    const auto copies = static_cast<std::int64_t>(deltas.size());
    const at::Tensor exact = sum.div(static_cast<double>(copies)), said = rounded(exact);
    for (std::int64_t owner = 0; owner < copies; ++owner) {
      const std::int64_t begin = sum.numel() * owner / copies, size = sum.numel() * (owner + 1) / copies - begin;
      residual_of(static_cast<std::size_t>(owner))
          .narrow(0, begin, size)
          .add_(exact.sub(said).narrow(0, begin, size), static_cast<double>(copies));
    }
    put_part(part, said, mean[part.name]);
  }
  return mean;
}

void CompressionTwin::elastic_round() {
  if ((step_ - config_.start + 1) % spec::interval_of(config_) != 0) return;
  const double alpha = config_.elastic_rate.value_or(0.9 / request_.copies);
  for (auto& [name, centre] : anchor_) {
    at::Tensor pull = at::zeros_like(centre);
    for (NamedTensors& copy : weights_) {
      const at::Tensor apart = copy[name].sub(centre);
      copy[name] = copy[name].sub(apart, alpha);
      pull.add_(apart);
    }
    centre = centre.add(pull, alpha);
  }
}

void CompressionTwin::diloco_rounds() {
  const std::int64_t number = step_ - config_.start + 1, interval = spec::interval_of(config_);
  for (int fragment = 0; fragment < config_.fragments; ++fragment) {
    if (number % interval == interval / config_.fragments * (fragment + 1) % interval) {
      auto& [when, deltas] = on_their_way_[fragment];
      when = number + config_.delay;
      std::vector<NamedTensors> all(weights_.size());
      for (const auto& [name, anchor] : anchor_) {
        if (parallel::fragment_of(name, config_.fragments) != fragment) continue;
        for (std::size_t i = 0; i < all.size(); ++i) all[i][name] = anchor.sub(weights_[i].at(name));
      }
      deltas = config_.delta_dtype == spec::DeltaDtype::kFp32 ? mean_of(all) : rounded_mean(all);
    }
    const auto sent = on_their_way_.find(fragment);
    if (sent == on_their_way_.end() || sent->second.first != number) continue;
    for (const auto& [name, delta] : sent->second.second) {
      at::Tensor& b = outer_momentum_[name];
      b = b.mul(config_.outer_momentum).add(delta);
      const at::Tensor direction = config_.outer_nesterov ? delta.add(b, config_.outer_momentum) : b;
      anchor_[name] = anchor_[name].sub(direction, config_.outer_learning_rate);
      for (NamedTensors& copy : weights_)
        copy[name] = copy[name].mul(config_.mixing).add(anchor_[name], 1 - config_.mixing);
    }
  }
}

}  // namespace trireme::train
