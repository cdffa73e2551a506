#include "trireme/nn/layer_drop.h"

#include <ATen/ops/add.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/mul.h>

#include <cmath>
#include <string>

#include "trireme/base/random.h"

namespace trireme::nn {
namespace {

class DroppedLayer final : public Layer {
 public:
  DroppedLayer(std::unique_ptr<Layer> layer, const LayerDrop& drop, std::int64_t number, const char* stack,
               std::vector<Param*> params)
      : layer_(std::move(layer)), drop_(drop), number_(number), stack_(stack), params_(std::move(params)) {}

  Tensors forward(Tensors inputs, Context& context, Tape* tape) override {
    if (!context.training) return layer_->forward(std::move(inputs), context, tape);
    if (!kept(context)) return inputs;
    const double p = probability(context);
    if (p >= 1) return layer_->forward(std::move(inputs), context, tape);
    const Tensors entered = inputs;
    Tensors outputs = layer_->forward(std::move(inputs), context, tape);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].is_same(entered[i])) outputs[i] = at::lerp(entered[i], outputs[i], 1 / p);
    }
    return outputs;
  }

  Tensors backward(Tensors gradients, Context& context, Tape& tape) override {
    if (!context.training) return layer_->backward(std::move(gradients), context, tape);
    if (!kept(context)) {
      for (Param* param : params_) {
        if (!param->trainable) continue;
        context.begin_adding(*param);
        gradient_to_add_to(*param);
        context.end_adding(*param);
        context.added(*param);
      }
      return gradients;
    }
    const double p = probability(context);
    if (p >= 1) return layer_->backward(std::move(gradients), context, tape);
    // dy (1 - 1 / p) + f'(dy / p): what passes the layer by, and what goes through it.
    Tensors through;
    for (const at::Tensor& gradient : gradients)
      through.push_back(gradient.defined() ? at::mul(gradient, 1 / p) : at::Tensor());
    Tensors out = layer_->backward(std::move(through), context, tape);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i].defined() && i < gradients.size() && gradients[i].defined())
        out[i] = at::add(out[i], gradients[i], 1 - 1 / p);
    }
    return out;
  }

 private:
  bool kept(const Context& context) const { return is_kept(drop_, context.seed, context.step, number_, stack_); }
  double probability(const Context& context) const { return keep_probability(drop_, context.step, number_); }

  std::unique_ptr<Layer> layer_;
  LayerDrop drop_;
  std::int64_t number_;
  const char* stack_;
  std::vector<Param*> params_;
};

}  // namespace

double kept_share(const LayerDrop& drop, std::int64_t step) {
  return (1 - drop.theta) * std::exp(-drop.gamma * static_cast<double>(step)) + drop.theta;
}

double keep_probability(const LayerDrop& drop, std::int64_t step, std::int64_t layer) {
  return 1 - static_cast<double>(layer) / static_cast<double>(drop.layers) * (1 - kept_share(drop, step));
}

bool is_kept(const LayerDrop& drop, std::uint64_t seed, std::int64_t step, std::int64_t layer, const char* stack) {
  const Random random(seed, std::string("layer drop/") + stack);
  const auto index = static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(drop.layers + 1) +
                     static_cast<std::uint64_t>(layer);
  return random.uniform(index) < keep_probability(drop, step, layer);
}

std::unique_ptr<Layer> with_layer_drop(std::unique_ptr<Layer> layer, const LayerDrop& drop, std::int64_t number,
                                       const char* stack, std::vector<Param*> params) {
  return std::make_unique<DroppedLayer>(std::move(layer), drop, number, stack, std::move(params));
}

}  // namespace trireme::nn
