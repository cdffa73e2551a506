// nn/mlp.h -- out(act(in(x))), or out(act(gate(x)) * up(x)) where gated.
//
// Kept for backward are the input and what the first projection gave; the activation is computed again there, which
// costs less than the memory it would take, unless `keep_active` says otherwise.
// Depends on: base, kernels.
#pragma once

#include "trireme/kernels/activation.h"
#include "trireme/nn/linear.h"

namespace trireme::nn {

class Mlp final : public ResidualLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  /// `in` gives [.., inner], or [.., 2 inner] with the gate's half first where gated.
  Mlp(Linear in, Linear out, kernels::Activation activation, bool gated, bool save_mlp_activations = false);
  at::Tensor forward_add(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) override;
  bool fuses_residual(const at::Tensor& x) const override { return out_.fuses_residual(x); }
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

 private:
  at::Tensor activate(const at::Tensor& inner) const;
  /// Of dy and what is kept: the gradient of `inner`; adds the second projection's gradients. `dbias` becomes the sum
  /// of its rows where the first projection takes one.
  at::Tensor inner_gradient(const at::Tensor& dy, const at::Tensor& inner, at::Tensor active, at::Tensor& dbias,
                            Context& context, Tape& tape);

  Linear in_, out_;
  kernels::Activation activation_;
  bool gated_, save_mlp_activations_;
};

}  // namespace trireme::nn
