#include "trireme/nn/glue.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme::nn {

Tensors OnFirst::forward(Tensors inputs, Context& context, Tape* tape) {
  inputs.at(0) = layer_->forward(std::move(inputs.at(0)), context, tape);
  return inputs;
}

Tensors OnFirst::backward(Tensors gradients, Context& context, Tape& tape) {
  gradients.at(0) = layer_->backward(std::move(gradients.at(0)), context, tape);
  return gradients;
}

Tensors Swap::forward(Tensors inputs, Context&, Tape*) {
  std::swap(inputs.at(0), inputs.at(1));
  return inputs;
}

Tensors Swap::backward(Tensors gradients, Context&, Tape&) {
  std::swap(gradients.at(0), gradients.at(1));
  return gradients;
}

Tensors First::forward(Tensors inputs, Context&, Tape*) {
  TRIREME_CHECK(inputs.size() == inputs_, "{} tensors came where {} were expected", inputs.size(), inputs_);
  inputs.resize(1);
  return inputs;
}

Tensors First::backward(Tensors gradients, Context&, Tape&) {
  gradients.resize(inputs_);
  return gradients;
}

}  // namespace trireme::nn
