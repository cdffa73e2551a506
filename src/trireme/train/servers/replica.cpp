#include "trireme/train/servers/replica.h"

#include <ATen/ops/from_blob.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/train/engine/feed.h"
#include "trireme/train/engine/step_driver.h"

namespace trireme::train {
namespace {

template <typename T>
void read_tensor(const at::Tensor& tensor, double* into) {
  const at::Tensor flat = tensor.contiguous();
  const T* values = flat.const_data_ptr<T>();
  for (std::int64_t i = 0; i < flat.numel(); ++i) into[i] = static_cast<double>(values[i]);
}

void read_numbers(const at::Tensor& tensor, double* into) {
  if (tensor.scalar_type() == at::kDouble) return read_tensor<double>(tensor, into);
  TRIREME_CHECK(tensor.scalar_type() == at::kFloat, "master weights and gradients of replicas have 32 or 64 bits");
  read_tensor<float>(tensor, into);
}

void write_numbers(const double* from, at::Tensor tensor) {
  const at::Tensor given = at::from_blob(const_cast<double*>(from), {tensor.numel()}, at::kDouble);
  tensor.copy_(given.view(tensor.sizes()));
}

std::string sum_name(const nn::Param& param) { return "optim/sum/" + param.name; }

}  // namespace

double Replica::Gradient::norm() const {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

std::vector<spec::Position> step_positions(const Replica& replica, std::int64_t steps) {
  std::vector<spec::Position> positions{{}};
  while (static_cast<std::int64_t>(positions.size()) < steps) positions.push_back(replica.after(positions.back()));
  return positions;
}

Replica::Replica(TrainState& state, int parts) : state_(state), parts_(parts) {
  for (const nn::Param& param : state_.engine.params()) {
    if (param.trainable) keys_ += static_cast<std::uint64_t>(param.elements());
  }
}

StepPlan Replica::plan(const spec::Position& at, int part) const {
  Share share = state_.engine.share();
  share.rank = part;
  share.ranks = parts_;
  return plan_step(state_.recipe, at, share);
}

std::vector<double> Replica::weights() {
  std::vector<double> weights(keys_);
  double* at = weights.data();
  for (const nn::Param& param : state_.engine.params()) {
    if (!param.trainable) continue;
    read_numbers(param.master, at);
    at += param.elements();
  }
  return weights;
}

void Replica::set_weights(const std::vector<double>& weights) {
  TRIREME_CHECK(weights.size() == keys_, "{} weights for a model of {}", weights.size(), keys_);
  const double* from = weights.data();
  for (nn::Param& param : state_.engine.params()) {
    if (!param.trainable) continue;
    write_numbers(from, param.master);
    nn::publish(param);
    ++param.version;
    from += param.elements();
  }
  state_.engine.updated();
}

std::vector<double> Replica::sums() {
  if (state_.recipe.optim.kind != spec::OptimizerKind::kAdagrad) return {};
  std::vector<double> sums(keys_);
  double* at = sums.data();
  for (const nn::Param& param : state_.engine.params()) {
    if (!param.trainable) continue;
    read_numbers(state_.registry.at(sum_name(param)).tensor, at);
    at += param.elements();
  }
  return sums;
}

void Replica::set_sums(const std::vector<double>& sums) {
  const double* from = sums.data();
  for (const nn::Param& param : state_.engine.params()) {
    if (!param.trainable) continue;
    write_numbers(from, state_.registry.at(sum_name(param)).tensor);
    from += param.elements();
  }
}

Replica::Gradient Replica::compute(const spec::Position& at, int part) {
  const StepPlan step = plan(at, part);
  std::vector<data::Batch> batches;
  Gradient gradient{.values = std::vector<double>(keys_), .learning_rate = step.hyperparameters.learning_rate};
  for (const std::vector<std::int64_t>& micro : step.microbatches) {
    const data::Batch& batch = batches.emplace_back(state_.samples.read(micro));
    gradient.counts.targets += count_targets(batch);
    gradient.counts.samples += static_cast<double>(micro.size());
  }
  if (gradient.counts.targets <= 0)
    throw ConfigError(fmt::format("no token of part {} of step {} has a loss", part, step.after.step),
                      "look at the loss mask of the data, or take fewer ranks");
  const StepScales scales = scales_of(gradient.counts);
  auto& engine = *std::get<std::unique_ptr<SingleStepEngine>>(state_.any_engine);
  nn::zero_grad(engine.params());
  StepSums sums = engine.compute_alone(batches, [&] { return state_.context_for(scales, at.step); });
  gradient.losses = std::move(sums.losses);
  gradient.flops = sums.flops;
  double* into = gradient.values.data();
  for (const nn::Param& param : engine.params()) {
    if (!param.trainable) continue;
    read_numbers(param.gradient, into);
    into += param.elements();
  }
  return gradient;
}

}  // namespace trireme::train
