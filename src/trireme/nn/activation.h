// nn/activation.h -- a nonlinear function by itself, where it is not the middle of an MLP.
//
// Depends on: base, kernels.
#pragma once

#include "trireme/kernels/activation.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

class Activate final : public UnaryLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  explicit Activate(kernels::Activation kind) : kind_(kind) {}
  at::Tensor forward(at::Tensor x, Context& context, Tape* tape) override;
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

 private:
  kernels::Activation kind_;
};

}  // namespace trireme::nn
