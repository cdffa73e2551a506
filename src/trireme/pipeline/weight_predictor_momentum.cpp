// SpecTrain (Chen, Yang and Cheng 2018): the velocity changes slowly, so s updates from now the weights will be about
// w - s x rate x v. Our SGD keeps v <- mu v + g and steps by rate x v, so the formula is the paper's with its (1 - mu)
// in the rate. Decay is in v already.
#include <ATen/ops/sub.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/nn/state.h"
#include "trireme/pipeline/versions.h"

namespace trireme::pipeline {
namespace {

class MomentumPredictor final : public WeightPredictor {
 public:
  MomentumPredictor(optim::Optimizer& optimizer, std::function<double()> learning_rate)
      : optimizer_(optimizer), learning_rate_(std::move(learning_rate)) {
    if (optimizer.config().kind != spec::OptimizerKind::kSgd || optimizer.config().momentum <= 0) {
      throw ConfigError("schedule spectrain predicts weights from the velocity of SGD, which this optimizer has not",
                        "set optim.kind = \"sgd\" and optim.momentum = 0.9, or take xpipe for Adam");
    }
    optimizer.add_state(state_);
  }

  at::Tensor after(const nn::Param& param, int updates) override {
    if (!param.trainable || updates == 0 || optimizer_.steps() == 0) return param.master;
    const double rate = spec::rule_for(optimizer_.config(), param.name, param.decay).rate * learning_rate_();
    return at::sub(param.master, state_.at("optim/velocity/" + param.name).tensor, updates * rate);
  }

 private:
  optim::Optimizer& optimizer_;
  std::function<double()> learning_rate_;
  nn::State state_;  // where the velocities are
};

}  // namespace

std::unique_ptr<WeightPredictor> predict_by_momentum(optim::Optimizer& optimizer,
                                                     std::function<double()> learning_rate) {
  return std::make_unique<MomentumPredictor>(optimizer, std::move(learning_rate));
}

std::unique_ptr<WeightPredictor> make_weight_predictor(schedule::WeightChoice law, optim::Optimizer& optimizer,
                                                       std::function<double()> learning_rate) {
  if (law == schedule::WeightChoice::kPredictMomentum) return predict_by_momentum(optimizer, std::move(learning_rate));
  if (law == schedule::WeightChoice::kPredictAdam) return predict_by_adam(optimizer, std::move(learning_rate));
  return nullptr;
}

}  // namespace trireme::pipeline
