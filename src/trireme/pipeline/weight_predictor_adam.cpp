// XPipe (Guan et al. 2019): the moments change slowly, so s updates from now the weights will be about
// w - s x rate x m^ / (sqrt(v^) + eps), with m^ and v^ corrected for the steps taken. AdamW's decay, which is no part
// of the moments, is left out, as the paper's Adam has none.
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/sqrt.h>
#include <fmt/format.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/nn/state.h"
#include "trireme/pipeline/versions.h"

namespace trireme::pipeline {
namespace {

class AdamPredictor final : public WeightPredictor {
 public:
  AdamPredictor(optim::Optimizer& optimizer, std::function<double()> learning_rate)
      : optimizer_(optimizer), learning_rate_(std::move(learning_rate)) {
    const spec::OptimizerKind kind = optimizer.config().kind;
    if (kind != spec::OptimizerKind::kAdam && kind != spec::OptimizerKind::kAdamw) {
      throw ConfigError("schedule xpipe predicts weights from the moments of Adam, which this optimizer has not",
                        "set optim.kind = \"adam\" or \"adamw\", or take spectrain for SGD with momentum");
    }
    optimizer.add_state(state_);
  }

  at::Tensor after(const nn::Param& param, int updates) override {
    if (!param.trainable || updates == 0 || optimizer_.steps() == 0) return param.master;
    const spec::OptimConfig& config = optimizer_.config();
    const auto steps = static_cast<double>(optimizer_.steps());
    const double rate = spec::rule_for(config, param.name, param.decay).rate * learning_rate_();
    const double correct_m = 1 - std::pow(config.beta1, steps), correct_v = 1 - std::pow(config.beta2, steps);
    at::Tensor divisor = at::sqrt(state_.at("optim/v/" + param.name).tensor);
    divisor.mul_(1 / std::sqrt(correct_v)).add_(spec::epsilon_of(config));
    return at::addcdiv(param.master, state_.at("optim/m/" + param.name).tensor, divisor, -updates * rate / correct_m);
  }

 private:
  optim::Optimizer& optimizer_;
  std::function<double()> learning_rate_;
  nn::State state_;  // where the moments are
};

}  // namespace

std::unique_ptr<WeightPredictor> predict_by_adam(optim::Optimizer& optimizer, std::function<double()> learning_rate) {
  return std::make_unique<AdamPredictor>(optimizer, std::move(learning_rate));
}

}  // namespace trireme::pipeline
