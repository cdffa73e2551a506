#include "trireme/train/servers/replica.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/optim/gradients.h"
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
  read_tensor<float>(tensor.to(at::kFloat), into);  // gradients may have 16 bits
}

void write_numbers(const double* from, at::Tensor tensor) {
  const at::Tensor given = at::from_blob(const_cast<double*>(from), {tensor.numel()}, at::kDouble);
  tensor.copy_(given.view(tensor.sizes()));
}

std::string moment_name(const std::string& moment, const nn::Param& param) {
  return fmt::format("optim/{}/{}", moment, param.name);
}
std::string count_name(const nn::Param& param) { return "downpour/pushes/" + param.name; }

}  // namespace

void count_pushes_by_key(TrainState& state) {
  for (const nn::Param& param : state.engine.params()) {
    if (param.trainable) state.registry.add(count_name(param), at::zeros_like(param.master), param.placement);
  }
}

std::vector<spec::Position> step_positions(const Replica& replica, std::int64_t steps) {
  std::vector<spec::Position> positions{{}};
  while (static_cast<std::int64_t>(positions.size()) < steps) positions.push_back(replica.after(positions.back()));
  return positions;
}

Replica::Replica(TrainState& state, int parts) : state_(state), parts_(parts) {
  const spec::OptimConfig& optim = state_.recipe.optim;
  for (const nn::Param& param : state_.engine.params()) {
    if (!param.trainable) continue;
    const auto keys = static_cast<std::uint64_t>(param.elements());
    const spec::ParamRule rule = spec::rule_for(optim, param.name, param.decay);
    groups_.push_back({{keys_, keys_ + keys}, rule.rate * param.rate, rule.weight_decay});
    keys_ += keys;
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

std::vector<std::vector<double>> Replica::planes() {
  std::vector<std::vector<double>> planes;
  const auto add = [&](const std::function<void(const nn::Param&, double*)>& read) {
    std::vector<double>& plane = planes.emplace_back(keys_);
    double* at = plane.data();
    for (const nn::Param& param : state_.engine.params()) {
      if (!param.trainable) continue;
      read(param, at);
      at += param.elements();
    }
  };
  for (const std::string& moment : server_moments(state_.recipe.optim)) {
    add([&](const nn::Param& param, double* into) {
      read_numbers(state_.registry.at(moment_name(moment, param)).tensor, into);
    });
  }
  if (!counts_pushes(state_.recipe.optim)) return planes;
  add([&](const nn::Param& param, double* into) {
    if (const nn::StateTensor* counts = state_.registry.find(count_name(param))) {
      read_numbers(counts->tensor, into);
    } else {
      std::fill_n(into, param.elements(), static_cast<double>(state_.optimizer->steps()));
    }
  });
  return planes;
}

void Replica::set_planes(const std::vector<std::vector<double>>& planes) {
  const std::vector<std::string> moments = server_moments(state_.recipe.optim);
  for (std::size_t i = 0; i < planes.size(); ++i) {
    TRIREME_CHECK(planes[i].size() == keys_, "{} numbers for a model of {}", planes[i].size(), keys_);
    const double* from = planes[i].data();
    for (const nn::Param& param : state_.engine.params()) {
      if (!param.trainable) continue;
      const nn::StateTensor* entry =
          state_.registry.find(i < moments.size() ? moment_name(moments[i], param) : count_name(param));
      if (entry != nullptr) write_numbers(from, entry->tensor);
      from += param.elements();
    }
  }
  if (!counts_pushes(state_.recipe.optim)) return;
  const auto pushes = static_cast<std::int64_t>(*std::ranges::max_element(planes.back()));
  state_.optimizer->undo_steps(state_.optimizer->steps() - pushes);
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
  compute_batches(batches, at.step, gradient);
  const double factor = optim::clip_factor(gradient.norm, state_.recipe.optim.grad_clip_norm);
  if (factor == 1) return gradient;
  const bool wide = state_.recipe.precision.compute == spec::Precision::kFp64;
  for (double& value : gradient.values)  // as the optimizer's kernels multiply
    value = wide ? value * factor : static_cast<double>(static_cast<float>(value) * static_cast<float>(factor));
  return gradient;
}

Replica::Gradient Replica::compute_rows(const std::vector<std::int64_t>& rows, std::int64_t step,
                                        const nn::LossCounts& counts) {
  std::vector<data::Batch> batches{state_.samples.read(rows)};
  Gradient gradient{.values = std::vector<double>(keys_), .counts = counts};
  compute_batches(batches, step, gradient);
  return gradient;
}

/// At counts that are known.
void Replica::compute_batches(std::vector<data::Batch>& batches, std::int64_t step, Gradient& gradient) {
  const StepScales scales = scales_of(gradient.counts);
  auto& engine = *std::get<std::unique_ptr<SingleStepEngine>>(state_.any_engine);
  nn::zero_grad(engine.params());
  StepSums sums = engine.compute_alone(batches, [&] { return state_.context_for(scales, step); });
  gradient.losses = std::move(sums.losses);
  gradient.flops = sums.flops;
  double squares = 0;
  for (const double square : optim::gradient_squares(engine.params())) squares += square;
  gradient.norm = std::sqrt(squares);
  double* into = gradient.values.data();
  for (const nn::Param& param : engine.params()) {
    if (!param.trainable) continue;
    read_numbers(param.gradient, into);
    into += param.elements();
  }
}

}  // namespace trireme::train
