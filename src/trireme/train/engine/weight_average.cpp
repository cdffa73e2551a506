#include "trireme/train/engine/weight_average.h"

#include <ATen/ops/lerp.h>

#include "trireme/base/log.h"
#include "trireme/nn/state.h"
#include "trireme/optim/elementwise.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/engine/engine.h"
#include "trireme/train/engine/updates.h"

namespace trireme::train {

WeightAverage::WeightAverage(nn::Params& params, double decay) : params_(params), decay_(decay) {
  for (const nn::Param& param : params_) {
    averages_.push_back(param.trainable ? param.master.to(optim::update_type(param.master), /*non_blocking=*/false,
                                                          /*copy=*/true)
                                        : at::Tensor());
  }
}

void WeightAverage::update() {
  std::size_t i = 0;
  for (const nn::Param& param : params_) {
    if (averages_[i].defined()) averages_[i].lerp_(param.master.to(averages_[i].scalar_type()), 1 - decay_);
    ++i;
  }
}

std::int64_t WeightAverage::bytes() const {
  std::int64_t sum = 0;
  for (const at::Tensor& average : averages_)
    sum += average.defined() ? static_cast<std::int64_t>(average.nbytes()) : 0;
  return sum;
}

void WeightAverage::add_state(nn::State& state) {
  std::size_t i = 0;
  for (const nn::Param& param : params_) {
    if (averages_[i].defined()) state.add("ema/" + param.name, averages_[i], param.placement);
    ++i;
  }
}

EvaluationWeights::EvaluationWeights(Engine& engine, Updates& updates, const optim::Optimizer& optimizer,
                                     const WeightAverage* average)
    : engine_(engine), updates_(updates) {
  updates_.wait();
  for (const at::Tensor& part : updates_.computed()) computed_.push_back(part.clone());
  std::size_t i = 0;
  for (nn::Param& param : engine_.params()) {
    const at::Tensor other = average != nullptr ? average->of(i) : optimizer.evaluation_weights(param);
    ++i;
    at::Tensor& kept = trained_.emplace_back();
    if (!other.defined() || !param.trainable) continue;
    kept = param.master.clone();
    param.master.copy_(other);
    nn::publish(param);
  }
  engine_.updated();
}

void EvaluationWeights::restore() {
  engine_.data_parallel().wait_for_weights();
  std::size_t i = 0;
  for (nn::Param& param : engine_.params()) {
    const at::Tensor& kept = trained_[i++];
    if (!kept.defined()) continue;
    param.master.copy_(kept);
    nn::publish(param);
  }
  trained_.clear();
  updates_.exchanged(computed_);
}

EvaluationWeights::~EvaluationWeights() {
  if (trained_.empty()) return;
  try {
    restore();
  } catch (const std::exception& error) {
    log_warn("the trained weights could not be put back after an evaluation: {}", error.what());
  }
}

}  // namespace trireme::train
