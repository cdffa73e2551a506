// nn/mlp.h -- out(act(in(x))), or out(act(gate(x)) * up(x)) where gated.
//
// Saved for backward are the input and the pre-activation; the activation is recomputed there, which costs less than
// the memory it would take, unless `save_mlp_activations` says otherwise.
// Depends on: base, kernels.
#pragma once

#include "trireme/kernels/activation.h"
#include "trireme/nn/layer.h"
#include "trireme/nn/linear.h"

namespace trireme::nn {

class Mlp final : public ResidualLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  /// `in` gives [.., ffn_size], or [.., 2 ffn_size] with the gate's half first where gated.
  Mlp(Linear in, Linear out, kernels::Activation activation, bool gated, bool save_mlp_activations = false);
  ResidualSum forward_add(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) override;
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

 private:
  Linear in_, out_;
  kernels::Activation activation_;
  bool gated_, save_mlp_activations_;
};

/// A nonlinear function by itself, where it is not the middle of an MLP.
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
