#include "trireme/nn/linear_input.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "trireme/nn/layer.h"

namespace trireme::nn {

std::vector<std::int64_t> with_width(const at::Tensor& x, std::int64_t width) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = width;
  return shape;
}

GateUp split_gate_up(const at::Tensor& rows) {
  const std::int64_t half = rows.size(1) / 2;
  return {rows.narrow(1, 0, half), rows.narrow(1, half, half)};
}

at::Tensor activated(const LinearInput& input) {
  if (input.x.defined()) return input.x;
  const at::Tensor& from = input.pre_activation;
  if (!input.gated) {
    at::Tensor x = at::empty_like(from);
    kernels::activation_forward(x, from, at::Tensor(), input.activation);
    return x;
  }
  const auto [gate, up] = split_gate_up(as_rows(from));
  at::Tensor x = at::empty({gate.size(0), gate.size(1)}, from.options());
  kernels::gated_forward(x, gate, up, input.activation);
  return x.view(with_width(from, gate.size(1)));
}

at::Tensor activation_grad(at::Tensor dx, const LinearInput& input, at::Tensor recompute, at::Tensor& row_sum) {
  if (!input.gated) {
    kernels::activation_backward(dx, row_sum, dx, input.pre_activation, at::Tensor(), input.activation,
                                 recompute.defined() ? &recompute : nullptr, /*anew=*/true);
    return dx;
  }
  at::Tensor grad = at::empty_like(input.pre_activation);
  const auto [gate, up] = split_gate_up(as_rows(input.pre_activation));
  auto [dgate, dup] = split_gate_up(as_rows(grad));
  at::Tensor x = recompute.defined() ? as_rows(recompute) : recompute;
  kernels::gated_backward(dgate, dup, x, as_rows(dx), gate, up, input.activation);
  return grad;
}

}  // namespace trireme::nn
