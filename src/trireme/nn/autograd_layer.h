// nn/autograd_layer.h -- a layer out of any function on tensors: autograd writes its backward.
//
// For what is not worth a hand-written backward, and the oracle of those that are. No communication inside: autograd
// has threads of its own, and ranks that are threads could wait for each other there.
// Depends on: base.
#pragma once

#include <functional>

#include "trireme/nn/layer.h"

namespace trireme::nn {

class AutogradLayer final : public Layer {
 public:
  /// outputs = function(inputs, weights): differentiable operators only, no writing into inputs or weights.
  using Function = std::function<Tensors(const Tensors& inputs, const Tensors& weights)>;
  AutogradLayer(std::vector<Param*> params, Function function);
  Tensors forward(Tensors inputs, Context& context, Tape* tape) override;
  Tensors backward(Tensors gradients, Context& context, Tape& tape) override;

 private:
  std::vector<Param*> params_;
  Function function_;
};

}  // namespace trireme::nn
