// nn/glue.h -- layers that only change which tensors travel along: what makes an encoder and a decoder one chain.
//
// Depends on: base.
#pragma once

#include <memory>

#include "trireme/nn/layer.h"

namespace trireme::nn {

/// The inner layer on the first tensor; the others pass by.
class OnFirst final : public Layer {
 public:
  explicit OnFirst(std::unique_ptr<UnaryLayer> layer) : layer_(std::move(layer)) {}
  Tensors forward(Tensors inputs, Context& context, Tape* tape) override;
  Tensors backward(Tensors gradients, Context& context, Tape& tape) override;

 private:
  std::unique_ptr<UnaryLayer> layer_;
};

/// (a, b) becomes (b, a): from the encoder, whose output is now the memory, to the decoder's tokens.
class Swap final : public Layer {
 public:
  Tensors forward(Tensors inputs, Context& context, Tape* tape) override;
  Tensors backward(Tensors gradients, Context& context, Tape& tape) override;
};

/// The first tensor only.
class First final : public Layer {
 public:
  explicit First(std::size_t inputs) : inputs_(inputs) {}
  Tensors forward(Tensors inputs, Context& context, Tape* tape) override;
  Tensors backward(Tensors gradients, Context& context, Tape& tape) override;

 private:
  std::size_t inputs_;
};

}  // namespace trireme::nn
