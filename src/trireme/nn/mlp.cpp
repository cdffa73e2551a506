#include "trireme/nn/mlp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

namespace trireme::nn {

Mlp::Mlp(Linear in, Linear out, kernels::Activation activation, bool gated)
    : in_(in), out_(out), activation_(activation), gated_(gated) {}

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

at::Tensor Mlp::run(at::Tensor x, Context& context, Tape* tape) {
  at::Tensor kept;
  at::Tensor inner = in_.product(x, context, &kept);
  at::Tensor y = out_.product(activate(inner), context);
  if (tape) tape->push({std::move(kept), std::move(inner)});
  return y;
}

at::Tensor Mlp::run_back(at::Tensor dy, Context& context, Tape& tape) {
  const auto [x, inner] = tape.pop<2>();
  // Where no rank waits in between, one pass over `inner` makes both the activation again and the gradient.
  const bool together = out_.gradients_apart();
  at::Tensor active = together ? at::Tensor() : activate(inner);
  at::Tensor dactive = together ? out_.input_gradient(dy, context) : out_.gradients(dy, active, context, tape);
  if (together) active = at::empty_like(dactive);
  at::Tensor dinner, dbias;
  if (gated_) {
    const at::Tensor rows = as_rows(inner);
    const std::int64_t half = rows.size(1) / 2;
    dinner = at::empty_like(inner);
    at::Tensor drows = as_rows(dinner);
    at::Tensor dgate = drows.narrow(1, 0, half), dup = drows.narrow(1, half, half);
    at::Tensor again = together ? as_rows(active) : at::Tensor();
    kernels::gated_backward(dgate, dup, again, as_rows(dactive), rows.narrow(1, 0, half), rows.narrow(1, half, half),
                            activation_);
  } else {
    dinner = std::move(dactive);
    // By itself, to be added when the weights' gradients are: perhaps later, with the same bits.
    const auto sums = inner.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    if (in_.wants_row_sum()) dbias = at::zeros({inner.size(-1)}, inner.options().dtype(sums));
    kernels::activation_backward(dinner, dbias, dinner, inner, at::Tensor(), activation_, together ? &active : nullptr);
  }
  if (together) out_.weight_gradient(dy, active, context, tape);
  active = at::Tensor();
  return in_.gradients(dinner, x, context, tape, dbias);
}

}  // namespace trireme::nn
