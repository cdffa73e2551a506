#include "trireme/nn/mlp.h"

#include <ATen/ops/empty_like.h>

namespace trireme::nn {

Mlp::Mlp(Linear in, Linear out, kernels::Activation activation, bool gated, bool save_mlp_activations)
    : in_(in), out_(out), activation_(activation), gated_(gated), save_mlp_activations_(save_mlp_activations) {}

ResidualSum Mlp::forward_add(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) {
  // A gate is no epilogue of the first GEMM, but may go into how the second one's input is quantised.
  LinearEpilogue epilogue;
  if (!gated_) epilogue.activation = activation_;
  LinearOutput in = in_.forward({.x = std::move(x)}, epilogue, context);
  LinearInput inner{.activation = activation_, .gated = gated_};
  if (gated_) {
    inner.pre_activation = std::move(in.y);
    if (save_mlp_activations_) inner.x = activated(inner);
  } else {
    inner.pre_activation = std::move(in.pre_activation);
    inner.x = std::move(in.y);
  }
  LinearOutput out = out_.forward(inner, {.residual = residual}, context);
  if (!save_mlp_activations_) inner.x = at::Tensor();
  if (tape) tape->push({std::move(in.saved_input), std::move(inner.pre_activation), std::move(inner.x)});
  return residual_sum(residual, std::move(out));
}

at::Tensor Mlp::backward(at::Tensor dy, Context& context, Tape& tape) {
  auto [x, pre_activation, active] = tape.pop<3>();
  const LinearInput inner{.x = std::move(active),
                          .pre_activation = std::move(pre_activation),
                          .activation = activation_,
                          .gated = gated_,
                          .producer = &in_};
  const LinearGrad grad = out_.backward({.grad = std::move(dy)}, inner, context, tape);
  return in_.backward(grad, {.x = std::move(x)}, context, tape).grad;
}

at::Tensor Activate::forward(at::Tensor x, Context&, Tape* tape) {
  const at::Tensor rows = as_rows(x);
  at::Tensor y = at::empty_like(rows);
  kernels::activation_forward(y, rows, at::Tensor(), kind_);
  at::Tensor out = y.view(x.sizes());
  if (tape) tape->push({std::move(x)});
  return out;
}

at::Tensor Activate::backward(at::Tensor dy, Context&, Tape& tape) {
  const auto [x] = tape.pop<1>();
  at::Tensor dx = at::empty_like(as_rows(x)), none;
  kernels::activation_backward(dx, none, as_rows(dy), as_rows(x), none, kind_);
  return dx.view(x.sizes());
}

}  // namespace trireme::nn
