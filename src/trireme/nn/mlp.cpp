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
  const std::int64_t half = inner.size(1) / 2;
  at::Tensor y = at::empty({inner.size(0), half}, inner.options());
  kernels::gated_forward(y, inner.narrow(1, 0, half), inner.narrow(1, half, half), activation_);
  return y;
}

at::Tensor Mlp::run(at::Tensor x, Context& context, Tape* tape) {
  at::Tensor inner = in_.product(as_rows(x), context);
  at::Tensor y = out_.product(activate(inner), context);
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = y.size(1);
  if (tape) tape->push({std::move(x), std::move(inner)});
  return y.view(shape);
}

at::Tensor Mlp::run_back(at::Tensor dy, Context& context, Tape& tape) {
  const auto [x, inner] = tape.pop<2>();
  at::Tensor dinner;
  if (gated_) {
    const std::int64_t half = inner.size(1) / 2;
    at::Tensor active = activate(inner);
    const at::Tensor dactive = out_.gradients(as_rows(dy), active, context, tape);
    dinner = at::empty_like(inner);
    at::Tensor dgate = dinner.narrow(1, 0, half), dup = dinner.narrow(1, half, half), none;
    kernels::gated_backward(dgate, dup, none, dactive, inner.narrow(1, 0, half), inner.narrow(1, half, half),
                            activation_);
  } else {
    dinner = out_.gradients(as_rows(dy), activate(inner), context, tape);
    at::Tensor none;
    kernels::activation_backward(dinner, none, dinner, inner, none, activation_);
  }
  return in_.gradients(dinner, as_rows(x), context, tape).view(x.sizes());
}

}  // namespace trireme::nn
