#include "trireme/nn/mlp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace trireme::nn {

Mlp::Mlp(Linear in, Linear out, kernels::Activation activation, bool gated, bool save_mlp_activations)
    : in_(in), out_(out), activation_(activation), gated_(gated), save_mlp_activations_(save_mlp_activations) {}

at::Tensor Mlp::activate(const at::Tensor& inner) const {
  if (!gated_) {
    at::Tensor y = at::empty_like(inner);
    kernels::activation_forward(y, inner, at::Tensor(), activation_);
    return y;
  }
  const at::Tensor rows = as_rows(inner);
  const std::int64_t half = rows.size(1) / 2;
  at::Tensor y = at::empty({rows.size(0), half}, inner.options());
  kernels::gated_forward(y, rows.narrow(1, 0, half), rows.narrow(1, half, half), activation_);
  std::vector<std::int64_t> shape = inner.sizes().vec();
  shape.back() = half;
  return y.view(shape);
}

at::Tensor Mlp::forward_add(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) {
  at::Tensor kept, inner, active;
  if (!gated_ && activation_ == kernels::Activation::kGeluTanh && in_.takes_gelu(x)) {
    kept = x;
    auto both = in_.gelu_product(x, context);
    inner = std::move(both.inner);
    active = std::move(both.active);
  } else {
    inner = in_.product(x, context, &kept);
    if (!save_mlp_activations_ && gated_ && out_.takes_gated()) {
      at::Tensor y = out_.gated_product_onto(residual, inner, activation_, context);
      if (tape) tape->push({std::move(kept), std::move(inner), at::Tensor()});
      return y;
    }
    active = activate(inner);
  }
  at::Tensor y = out_.product_onto(residual, active, context);
  if (!save_mlp_activations_) active = at::Tensor();
  if (tape) tape->push({std::move(kept), std::move(inner), std::move(active)});
  return y;
}

at::Tensor Mlp::inner_gradient(const at::Tensor& dy, const at::Tensor& inner, at::Tensor active, at::Tensor& dbias,
                               Context& context, Tape& tape) {
  // Where no rank waits in between, one pass over `inner` makes both the activation again and the gradient.
  const bool together = out_.gradients_apart(), again = together && !active.defined();
  // By itself, to be added when the weights' gradients are: perhaps later, with the same bits.
  const auto sums = inner.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (!gated_ && in_.wants_row_sum()) dbias = at::empty({inner.size(-1)}, inner.options().dtype(sums));
  at::Tensor dinner;
  if (!gated_ && activation_ == kernels::Activation::kGeluTanh && out_.gives_gelu_back(dy)) {
    at::Tensor made = again ? at::empty_like(inner) : at::Tensor();
    dinner = out_.gelu_gradient(dy, inner, made, dbias, context);
    out_.weight_gradient(dy, again ? made : active, context, tape);
    return dinner;
  }
  if (!together && !active.defined()) active = activate(inner);
  const RoundedGradient rounded = together ? out_.round_gradient(dy) : RoundedGradient{};
  at::Tensor dactive = together ? out_.input_gradient(dy, context, rounded) : out_.gradients(dy, active, context, tape);
  if (again) active = at::empty_like(dactive);
  if (gated_) {
    const at::Tensor rows = as_rows(inner);
    const std::int64_t half = rows.size(1) / 2;
    dinner = at::empty_like(inner);
    at::Tensor drows = as_rows(dinner);
    at::Tensor dgate = drows.narrow(1, 0, half), dup = drows.narrow(1, half, half);
    at::Tensor made = again ? as_rows(active) : at::Tensor();
    kernels::gated_backward(dgate, dup, made, as_rows(dactive), rows.narrow(1, 0, half), rows.narrow(1, half, half),
                            activation_);
  } else {
    dinner = std::move(dactive);
    kernels::activation_backward(dinner, dbias, dinner, inner, at::Tensor(), activation_, again ? &active : nullptr,
                                 /*anew=*/true);
  }
  if (together) out_.weight_gradient(dy, active, context, tape, rounded);
  return dinner;
}

at::Tensor Mlp::backward(at::Tensor dy, Context& context, Tape& tape) {
  auto [x, inner, active] = tape.pop<3>();
  if (gated_ && !active.defined() && in_.takes_gated() && out_.takes_gated() && !in_.has_bias() && !out_.has_bias() &&
      in_.trains() && out_.trains()) {
    return in_.gated_gradients(out_, dy, inner, x, activation_, context, tape);
  }
  at::Tensor dbias;
  const at::Tensor dinner = inner_gradient(dy, inner, std::move(active), dbias, context, tape);
  return in_.gradients(dinner, x, context, tape, dbias);
}

}  // namespace trireme::nn
