#include "trireme/train/servers/replica.h"

#include <ATen/ops/from_blob.h>

#include "trireme/base/error.h"
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

}  // namespace

std::vector<spec::Position> step_positions(const spec::Recipe& recipe, const Share& share) {
  std::vector<spec::Position> positions{{}};
  const std::int64_t steps = last_step(recipe);
  while (static_cast<std::int64_t>(positions.size()) < steps)
    positions.push_back(plan_step(recipe, positions.back(), share).after);
  return positions;
}

Replica::Replica(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& alone,
                 const data::Samples& samples, int parts)
    : state_(recipe, shape, alone, samples, make_engine), parts_(parts) {
  for (const nn::Param& param : state_.engine.params()) {
    if (param.trainable) keys_ += static_cast<std::uint64_t>(param.elements());
  }
  positions_ = step_positions(recipe, state_.engine.share());
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
    const at::Tensor given = at::from_blob(const_cast<double*>(from), {param.elements()}, at::kDouble);
    param.master.copy_(given.view(param.master.sizes()));
    nn::publish(param);
    ++param.version;
    from += param.elements();
  }
  state_.engine.updated();
}

Replica::Gradient Replica::compute(std::int64_t step, int part) {
  Share share = state_.engine.share();
  share.rank = part;
  share.ranks = parts_;
  Fetched fetched{.plan = plan_step(state_.recipe, positions_.at(static_cast<std::size_t>(step)), share)};
  for (const std::vector<std::int64_t>& micro : fetched.plan.microbatches)
    fetched.batches.push_back(state_.samples.read(micro));
  state_.position = fetched.plan.before;
  const nn::LossCounts counts = state_.count_losses(fetched);
  const StepScales scales = scales_of(counts);
  auto* engine = std::get<std::unique_ptr<SingleStepEngine>>(state_.any_engine).get();
  nn::zero_grad(engine->params());
  const StepSums sums = engine->compute(fetched.batches, [&] { return state_.context_for(scales, step); });
  StepReport report;
  tell_losses(report, sums.losses, counts);
  Gradient gradient{.values = std::vector<double>(keys_),
                    .loss = report.loss,
                    .learning_rate = fetched.plan.hyperparameters.learning_rate};
  double* at = gradient.values.data();
  for (const nn::Param& param : engine->params()) {
    if (!param.trainable) continue;
    if (param.gradient.defined() && !param.gradient_empty) read_numbers(param.gradient, at);
    at += param.elements();
  }
  return gradient;
}

}  // namespace trireme::train
