#include "trireme/pipeline/delayed_waves.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme::pipeline {
namespace {

class WavesGiven final : public nn::WeightSource {
 public:
  explicit WavesGiven(const std::map<const nn::Param*, at::Tensor>& values) : values_(values) {}
  const at::Tensor& value(const nn::Param& param) override { return values_.at(&param); }

 private:
  const std::map<const nn::Param*, at::Tensor>& values_;
};

}  // namespace

void DelayedWaves::begin_wave(double learning_rate) {
  Copy& now = versions_.emplace_back();
  for (const nn::Param& param : model_.params) now.emplace(&param, param.master.clone());
  rates_.push_back(learning_rate);
}

void DelayedWaves::add(Micro& micro, int worker, int number) {
  const int waves = law_.version(number);
  TRIREME_CHECK(waves < static_cast<int>(versions_.size()), "minibatch {} of wave {} wants version {}", number,
                versions_.size() - 1, waves);
  std::map<int, Copy>& own = gradients_[worker];
  Copy weights;
  for (const nn::Param& param : model_.params) {
    at::Tensor value = versions_[static_cast<std::size_t>(waves)].at(&param).clone();
    for (int other = waves * law_.minibatches; param.trainable && other < law_.own_until(number); ++other) {
      value.add_(own.at(other).at(&param), -rates_[static_cast<std::size_t>(other / law_.minibatches)]);
    }
    weights.emplace(&param, value.to(param.value.scalar_type()));
  }
  // Its own gradients apart from those of the minibatches before it.
  Copy before;
  for (nn::Param& param : model_.params) {
    if (param.trainable && !param.gradient_empty) before.emplace(&param, param.gradient.clone());
    param.gradient_empty = true;
  }
  WavesGiven given(weights);
  micro.context.weights = &given;
  nn::Tape tape;
  model_.forward(micro.inputs, micro.context, &tape);
  model_.backward(micro.context, tape);
  micro.context.weights = nullptr;
  for (nn::Param& param : model_.params) {
    if (!param.trainable) continue;
    at::Tensor& gradient = param.gradient_empty ? nn::gradient_to_add_to(param) : param.gradient;
    own[number].emplace(&param, gradient.clone());
    if (const auto found = before.find(&param); found != before.end()) gradient.add_(found->second);
  }
}

}  // namespace trireme::pipeline
