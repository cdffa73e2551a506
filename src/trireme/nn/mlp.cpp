#include "trireme/nn/mlp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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
  at::Tensor dinner;
  if (gated_) {
    const at::Tensor rows = as_rows(inner);
    const std::int64_t half = rows.size(1) / 2;
    const at::Tensor dactive = as_rows(out_.gradients(dy, activate(inner), context, tape));
    dinner = at::empty_like(inner);
    at::Tensor drows = as_rows(dinner);
    at::Tensor dgate = drows.narrow(1, 0, half), dup = drows.narrow(1, half, half), none;
    kernels::gated_backward(dgate, dup, none, dactive, rows.narrow(1, 0, half), rows.narrow(1, half, half),
                            activation_);
  } else {
    dinner = out_.gradients(dy, activate(inner), context, tape);
    at::Tensor none;
    kernels::activation_backward(dinner, none, dinner, inner, none, activation_);
  }
  return in_.gradients(dinner, x, context, tape);
}

}  // namespace trireme::nn
