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
  /// `in` gives [.., inner], or [.., 2 inner] with the gate's half first where gated.
  Mlp(Linear in, Linear out, kernels::Activation activation, bool gated, bool keep_active = false);
  at::Tensor run_onto(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) override;
  bool adds_in_passing(const at::Tensor& x) const override { return out_.adds_in_passing(x); }
  at::Tensor run_back(at::Tensor dy, Context& context, Tape& tape) override;

 private:
  at::Tensor activate(const at::Tensor& inner) const;
  /// Of dy and what is kept: the gradient of `inner`; adds the second projection's gradients. `dbias` becomes the sum
  /// of its rows where the first projection takes one.
  at::Tensor inner_gradient(const at::Tensor& dy, const at::Tensor& inner, at::Tensor active, at::Tensor& dbias,
                            Context& context, Tape& tape);

  Linear in_, out_;
  kernels::Activation activation_;
  bool gated_, keep_active_;
};

}  // namespace trireme::nn
