#include "trireme/train/diagnose/compression_twin.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/nn/state.h"
#include "trireme/optim/gradients.h"
#include "trireme/optim/update.h"
#include "trireme/spec/parallel_config.h"
#include "trireme/train/diagnose/compression_twin_state.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/train_state.h"
#include "trireme/train/engine/trainer.h"

namespace trireme::train {

namespace {
using spec::CompressKind;
}

CompressionTwin::CompressionTwin(const TwinRequest& request)
    : request_(request),
      recipe_(request.recipe),
      config_(request.recipe.compress),
      samples_(data::open_samples(request.recipe, data::Split::kTrain)),
      methods_(config_, static_cast<std::uint64_t>(request.recipe.run.seed)) {
  spec::undistribute(recipe_);
  recipe_.run.device = spec::DeviceKind::kCpu;
  const spec::ModelShape shape = model_shape(recipe_);
  const PrepareParams prepare = preparation(recipe_, shape, request.alone);
  models::BuildOptions build = build_options(recipe_);
  build.adapt = prepare.adapt;
  model_ = models::build(shape, build);
  teacher_ = make_teacher(recipe_, shape, nn::single_rank(), at::kCPU);
  std::vector<std::string> names;
  for (const nn::Param& param : params()) names.push_back(param.name);
  prepare.freeze(params(), names);
  prepare.fill(params());
  for (int rank = 0; rank < request.dp; ++rank) {
    const Share share{.rank = rank,
                      .ranks = request.dp,
                      .length = samples_->length(),
                      .micro_batch_size = recipe_.train.micro_batch_size.value_or(0),
                      .weights = request.recipe.layout.dp_batch_weights};
    feeders_.push_back(std::make_unique<Feeder>(recipe_, *samples_, spec::Position{}, share));
  }
  const int copies = drifts() ? request.copies : 1;
  for (int copy = 0; copy < copies; ++copy) {
    optimizers_.push_back(optim::make_optimizer(recipe_.optim, params()));
    weights_.push_back(masters());
  }
  anchor_ = masters();
  for (const auto& [name, weights] : anchor_) outer_momentum_[name] = at::zeros_like(weights);
  for (int copy = 0; copy < request.copies; ++copy) {
    AdamState& state = adam_.emplace_back();
    for (const auto& [name, weights] : anchor_)
      state.m[name] = at::zeros_like(weights), state.v[name] = at::zeros_like(weights);
    steps_sum_.emplace_back();
    residuals_.emplace_back();
    for (const auto& [name, weights] : anchor_) steps_sum_.back()[name] = at::zeros_like(weights);
  }
}

std::vector<nn::Param*> CompressionTwin::trainable() {
  std::vector<nn::Param*> list;
  for (nn::Param& param : params()) {
    if (param.trainable) list.push_back(&param);
  }
  return list;
}

NamedTensors CompressionTwin::masters() {
  NamedTensors all;
  for (nn::Param* param : trainable()) all[param->name] = param->master.clone();
  return all;
}

void CompressionTwin::load(const NamedTensors& weights) {
  for (nn::Param* param : trainable()) {
    param->master.copy_(weights.at(param->name));
    nn::publish(*param);
    ++param->version;
  }
}

void CompressionTwin::give(const NamedTensors& gradients) {
  nn::zero_grad(params());
  for (nn::Param* param : trainable()) nn::add_gradient(*param, gradients.at(param->name));
}

double CompressionTwin::update(optim::Optimizer& optimizer, const NamedTensors& gradients, double rate) {
  give(gradients);
  return optim::update(optimizer, {.learning_rate = rate}).gradient_norm;
}

/// Forward and backward of each copy's rows; losses over all of them.
std::vector<CompressionTwin::CopyStep> CompressionTwin::compute(double& learning_rate) {
  std::vector<Fetched> fetched;
  nn::LossCounts counts;
  for (const auto& feeder : feeders_) {
    fetched.push_back(feeder->next());
    for (const data::Batch& batch : fetched.back().batches) counts.targets += count_targets(batch);
  }
  counts.samples = static_cast<double>(fetched.front().plan.samples);
  learning_rate = fetched.front().plan.hyperparameters.learning_rate;
  const StepScales scales = scales_of(counts);
  std::vector<nn::LossTerm> losses;
  std::vector<CopyStep> copies(static_cast<std::size_t>(request_.copies));
  const std::size_t inside = fetched.size() / copies.size();
  for (std::size_t rank = 0; rank < fetched.size(); ++rank) {
    const std::size_t copy = rank / inside;
    if (drifts()) load(weights_[copy]);
    nn::zero_grad(params());
    for (data::Batch& batch : fetched[rank].batches) {
      nn::Context context;
      context.training = true;
      context.seed = static_cast<std::uint64_t>(recipe_.run.seed);
      context.step = step_;
      context.gradient_scale = scales.gradient;
      context.sample_scale = scales.sample;
      nn::Tensors inputs = feed(batch, context, model_->shape);
      if (teacher_) teacher_->teach(inputs, context);
      nn::Tape tape;
      model_->forward(std::move(inputs), context, &tape);
      model_->backward(context, tape);
      for (const nn::LossTerm& term : context.losses) nn::add_term(losses, term);
    }
    for (nn::Param* param : trainable()) {
      const at::Tensor gradient = param->gradient_empty ? at::zeros_like(param->master) : param->gradient.clone();
      auto [entry, is_new] = copies[copy].gradients.try_emplace(param->name, gradient);
      if (!is_new) entry->second.add_(gradient);
    }
  }
  trace_.losses.push_back(nn::total_of(losses, counts));
  trace_.terms.clear();
  for (const nn::LossTerm& term : losses) {
    trace_.terms.push_back(term.name);
    trace_.means.push_back(nn::mean_of(term, counts));
  }
  return copies;
}

at::Tensor CompressionTwin::part_of(const parallel::CompressedPart& part, const at::Tensor& whole) const {
  at::Tensor out = at::zeros({part.rows * part.columns}, whole.options());
  const at::Tensor flat = whole.reshape({-1});
  for (const layout::ContiguousRun& run : layout::runs(part.placement))
    out.narrow(0, run.local, run.count).copy_(flat.narrow(0, run.global, run.count));
  return out.view({part.rows, part.columns});
}

void CompressionTwin::put_part(const parallel::CompressedPart& part, const at::Tensor& values,
                               at::Tensor& whole) const {
  const at::Tensor flat = whole.view({-1}), from = values.reshape({-1});
  for (const layout::ContiguousRun& run : layout::runs(part.placement))
    flat.narrow(0, run.global, run.count).copy_(from.narrow(0, run.local, run.count));
}

std::vector<TwinInput> CompressionTwin::inputs_of(const std::vector<NamedTensors>& copies, bool mean) const {
  std::vector<TwinInput> inputs;
  for (const parallel::CompressedPart& part : request_.parts) {
    TwinInput& input = inputs.emplace_back(TwinInput{part, {}});
    // Tokens of neighbouring ranks meet at one expert.
    const std::size_t together = copies.size() / static_cast<std::size_t>(part.copies);
    for (std::size_t i = 0; i < copies.size(); ++i) {
      at::Tensor copy = part_of(part, copies[i].at(part.name));
      if (mean) copy.div_(static_cast<double>(together));
      i % together == 0 ? input.copies.push_back(copy) : void(input.copies.back().add_(copy));
    }
  }
  return inputs;
}

NamedTensors CompressionTwin::summed(const std::vector<CopyStep>& copies, bool dense) {
  std::vector<NamedTensors> gradients;
  for (const CopyStep& copy : copies) gradients.push_back(copy.gradients);
  if (config_.local_clip && !dense) {
    for (NamedTensors& copy : gradients) {
      double squares = 0;
      for (const auto& [name, gradient] : copy) squares += gradient.square().sum().item<double>();
      const double limit = recipe_.optim.grad_clip_norm / std::sqrt(request_.copies);
      for (auto& [name, gradient] : copy) {
        if (std::sqrt(squares) > limit) gradient = gradient.mul(limit / std::sqrt(squares));
      }
    }
  }
  const std::vector<TwinInput> inputs = inputs_of(gradients);
  const std::vector<at::Tensor> sums = dense ? methods_.sum_dense(inputs) : methods_.sum(inputs, step_);
  NamedTensors out;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::string& name = inputs[i].part.name;
    if (!out.contains(name)) out[name] = at::zeros_like(gradients.front().at(name));
    put_part(inputs[i].part, sums[i], out[name]);
  }
  for (const auto& [name, gradient] : gradients.front()) {
    if (out.contains(name)) continue;
    std::vector<at::Tensor> all;
    for (const NamedTensors& copy : gradients) all.push_back(copy.at(name));
    out[name] = methods_.sum_dense(name, all);
  }
  return out;
}

void CompressionTwin::compressed_step(const std::vector<CopyStep>& copies, double rate) {
  const NamedTensors sums = summed(copies, step_ < config_.start);
  if (step_ == 0) trace_.gradients = {sums};
  if (!newest_.empty()) load(newest_);
  const NamedTensors before = masters();
  trace_.norms.push_back(update(*optimizers_.front(), sums, rate));
  newest_.clear();
  const spec::LayoutConfig& layout = request_.recipe.layout;
  if (layout.delayed_update && step_ >= layout.offload_warmup) {  // train/engine/updates.h
    newest_ = masters();
    load(before);
  }
}

NamedTensors CompressionTwin::mean_of(const std::vector<NamedTensors>& copies) const {
  NamedTensors mean;
  for (const auto& [name, first] : copies.front()) {
    at::Tensor sum = first.clone();
    for (std::size_t i = 1; i < copies.size(); ++i) sum.add_(copies[i].at(name));
    mean[name] = sum.div_(static_cast<double>(copies.size()));
  }
  return mean;
}

double CompressionTwin::clipped(NamedTensors& gradients) const {
  double squares = 0;
  for (const auto& [name, gradient] : gradients) squares += gradient.square().sum().item<double>();
  const double factor = optim::clip_factor(std::sqrt(squares), recipe_.optim.grad_clip_norm);
  for (auto& [name, gradient] : gradients) gradient = gradient.mul(factor);
  return std::sqrt(squares);
}

void CompressionTwin::adam_update(NamedTensors& weights, const AdamState& state, double rate, std::int64_t steps,
                                  std::int64_t updates) {
  const spec::OptimConfig& optim = recipe_.optim;
  for (nn::Param* param : trainable()) {
    const spec::ParamRule rule = spec::rule_for(optim, param->name, param->decay);
    at::Tensor& weight = weights.at(param->name);
    const double root = 1 - std::pow(optim.beta2, static_cast<double>(updates));
    const at::Tensor below = state.v.at(param->name).div(root).sqrt_().add_(spec::epsilon_of(optim));
    const at::Tensor m = state.m.at(param->name).div(1 - std::pow(optim.beta1, static_cast<double>(steps)));
    weight.mul_(1 - rate * rule.rate * rule.weight_decay).sub_(m.div(below), rate * rule.rate);
  }
}

/// What the first copy's state is, all have.
void CompressionTwin::onebit_adam_step(const std::vector<CopyStep>& copies, double rate) {
  const double beta1 = recipe_.optim.beta1, beta2 = recipe_.optim.beta2;
  AdamState& state = adam_.front();
  NamedTensors weights = masters();
  if (frozen_at_ == 0) {
    NamedTensors sums;
    for (const auto& [name, gradient] : copies.front().gradients) {
      sums[name] = gradient.clone();
      for (std::size_t i = 1; i < copies.size(); ++i) sums[name].add_(copies[i].gradients.at(name));
    }
    if (step_ == 0) trace_.gradients = {sums};
    trace_.norms.push_back(clipped(sums));
    for (const auto& [name, gradient] : sums) {
      state.m[name] = state.m[name].mul(beta1).add(gradient, 1 - beta1);
      state.v[name] = state.v[name].mul(beta2).add(gradient.square(), 1 - beta2);
    }
    adam_update(weights, state, rate, step_ + 1, step_ + 1);
    if (step_ + 1 >= std::max(config_.freeze_after.value_or(std::numeric_limits<std::int64_t>::max()), config_.start))
      frozen_at_ = step_ + 1;
  } else {
    double squares = 0;
    std::vector<NamedTensors> momenta;
    for (const CopyStep& copy : copies) {
      NamedTensors& mine = momenta.emplace_back();
      for (const auto& [name, gradient] : copy.gradients)
        mine[name] = state.m[name].mul(beta1).add(gradient, (1 - beta1) * request_.copies);
    }
    NamedTensors mean = mean_of(momenta);
    for (const TwinInput& input : inputs_of(momenta, /*mean=*/true)) {
      std::vector<at::Tensor> flat;
      for (const at::Tensor& copy : input.copies) flat.push_back(copy.reshape({-1}));
      const at::Tensor said = methods_.mean_of_signs(fmt::format("{}/{}", input.part.name, input.part.shard), flat,
                                                     part_of(input.part, state.v[input.part.name]).reshape({-1}));
      put_part(input.part, said, mean[input.part.name]);
    }
    state.m = mean;
    for (const auto& [name, m] : mean) squares += m.square().sum().item<double>();
    trace_.norms.push_back(std::sqrt(squares));
    adam_update(weights, state, rate, step_ + 1, frozen_at_);
  }
  load(weights);
}

void CompressionTwin::zero_one_adam_step(const std::vector<CopyStep>& copies, double rate) {
  const double beta1 = recipe_.optim.beta1, beta2 = recipe_.optim.beta2;
  if (step_ < config_.start || step_ >= next_update_) {  // a step of Adam from equal weights and momenta
    NamedTensors sums;
    for (const auto& [name, gradient] : copies.front().gradients) {
      sums[name] = gradient.clone();
      for (std::size_t i = 1; i < copies.size(); ++i) sums[name].add_(copies[i].gradients.at(name));
    }
    if (step_ == 0) trace_.gradients.assign(copies.size(), sums);
    trace_.norms.push_back(clipped(sums));
    ++updates_;
    for (std::size_t i = 0; i < copies.size(); ++i) {
      for (const auto& [name, gradient] : sums) {
        adam_[i].m[name] = adam_[i].m[name].mul(beta1).add(gradient, 1 - beta1);
        adam_[i].v[name] = adam_[i].v[name].mul(beta2).add(gradient.square(), 1 - beta2);
      }
      adam_update(weights_[i], adam_[i], rate, step_ + 1, updates_);
    }
    next_update_ = step_ + (step_ < config_.start ? 1 : std::int64_t{1} << (updates_ / config_.variance_scale));
    if (config_.freeze_after && next_update_ >= *config_.freeze_after)
      next_update_ = std::numeric_limits<std::int64_t>::max();
    for (auto& [name, weight] : anchor_) weight = weights_.front().at(name).clone();
    return;
  }
  const double corrected = rate / (1 - std::pow(beta1, static_cast<double>(step_ + 1)));
  ++since_;
  rates_ += corrected;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    NamedTensors own;
    for (const auto& [name, gradient] : copies[i].gradients) own[name] = gradient.mul(request_.copies);
    const double norm = clipped(own);
    if (i == 0) trace_.norms.push_back(norm);
    for (const auto& [name, gradient] : own) adam_[i].m[name] = adam_[i].m[name].mul(beta1).add(gradient, 1 - beta1);
    adam_update(weights_[i], adam_[i], rate, step_ + 1, updates_);
    for (nn::Param* param : trainable()) {
      const double own_rate = spec::rule_for(recipe_.optim, param->name, param->decay).rate;
      steps_sum_[i][param->name].add_(adam_[i].m[param->name], corrected * own_rate);
    }
  }
  for (nn::Param* param : trainable()) {
    const spec::ParamRule rule = spec::rule_for(recipe_.optim, param->name, param->decay);
    anchor_[param->name].mul_(1 - rate * rule.rate * rule.weight_decay);
  }
  const std::int64_t interval = std::min<std::int64_t>(
      config_.max_local_steps, std::int64_t{1} << std::min<std::int64_t>(20, step_ / config_.local_scale));
  if (since_ < interval && step_ + 1 < next_update_) return;
  NamedTensors mean = mean_of(steps_sum_);
  const NamedTensors& variance = adam_.front().v;
  for (const TwinInput& input : inputs_of(steps_sum_, /*mean=*/true)) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& copy : input.copies) flat.push_back(copy.reshape({-1}));
    put_part(input.part,
             methods_.mean_of_signs(fmt::format("{}/{}", input.part.name, input.part.shard), flat,
                                    part_of(input.part, variance.at(input.part.name)).reshape({-1})),
             mean[input.part.name]);
  }
  const double root = 1 - std::pow(beta2, static_cast<double>(updates_));
  for (nn::Param* param : trainable()) {
    const std::string& name = param->name;
    const double own_rate = spec::rule_for(recipe_.optim, name, param->decay).rate;
    const at::Tensor moves = variance.at(name).ne(0).to(variance.at(name).scalar_type());
    const at::Tensor below = variance.at(name).div(root).sqrt_().add_(spec::epsilon_of(recipe_.optim));
    anchor_[name] = anchor_[name].sub(mean[name].div(below).mul(moves));
    for (std::size_t i = 0; i < copies.size(); ++i) {
      weights_[i][name] = anchor_[name].clone();
      adam_[i].m[name] = mean[name].div(rates_ * own_rate).mul(moves);
      steps_sum_[i][name].zero_();
    }
  }
  since_ = 0;
  rates_ = 0;
}

/// Loads of experts are counted over all copies.
void CompressionTwin::advance_balance() {
  const spec::ModelShape& shape = model_->shape;
  if (!shape.experts.used()) return;
  for (const nn::moe::LayerLoads& layer : model_->balance.advance(
           true, models::expert_layer_names(shape), static_cast<std::size_t>(shape.experts.num_experts), {})) {
    for (const std::int64_t count : layer.counts) trace_.loads.push_back(static_cast<double>(count));
  }
}

void CompressionTwin::tell_biases() {
  if (!model_->shape.experts.used() || model_->shape.experts.bias_update_rate == 0) return;
  nn::State state;
  model_->balance.add_state(state);
  for (int side = 0; side < 2; ++side) {
    for (const std::string& layer : models::expert_layer_names(model_->shape)) {
      const at::Tensor& bias = state.at("router_bias/" + layer).tensor;
      for (std::int64_t i = 0; i < bias.numel(); ++i) trace_.biases.push_back(bias.const_data_ptr<float>()[i]);
    }
  }
}

TwinTrace CompressionTwin::run() {
  for (step_ = 0; step_ < request_.steps; ++step_) {
    double rate = 0;
    const std::vector<CopyStep> copies = compute(rate);
    switch (config_.kind) {
      case CompressKind::kOnebitAdam:
        onebit_adam_step(copies, rate);
        break;
      case CompressKind::kZeroOneAdam:
        zero_one_adam_step(copies, rate);
        break;
      case CompressKind::kLocalSgd:
      case CompressKind::kElasticAveraging:
      case CompressKind::kDiloco:
        local_step(copies, rate);
        break;
      default:
        compressed_step(copies, rate);
    }
    advance_balance();
  }
  tell_biases();
  if (!newest_.empty()) load(newest_);
  if (!drifts()) weights_ = {masters()};
  trace_.weights.clear();
  for (NamedTensors weights : weights_) {
    for (nn::Param& param : params()) {
      if (!param.trainable) weights[param.name] = param.master.clone();
    }
    trace_.weights.push_back(std::move(weights));
  }
  return std::move(trace_);
}

TwinTrace run_compression_twin(const TwinRequest& request) { return CompressionTwin(request).run(); }

}  // namespace trireme::train
