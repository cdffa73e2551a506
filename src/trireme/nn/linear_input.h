// nn/linear_input.h -- what enters a linear layer: a tensor, or an activation of one that need not be in memory.
//
// Depends on: base, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/kernels/activation.h"

namespace trireme::nn {

class Linear;

struct LinearInput {
  at::Tensor x = {};  ///< [.., in]; undefined: f(pre_activation)
  /// [.., in]; gated: [.., 2 in], x = f(gate) * up with the gate's half first. In backward the gradient is that of
  /// this, where it is defined.
  at::Tensor pre_activation = {};
  kernels::Activation activation = kernels::Activation::kRelu;  ///< f
  bool gated = false;
  /// In backward: the layer that gave the pre-activation. It gets its gradient in the form that it computes with.
  const Linear* producer = nullptr;
};

/// x, computed where it is not there.
at::Tensor activated(const LinearInput& input);
/// From the gradient of x to that of its pre-activation, in one pass that also writes x again where `recompute` is
/// defined, and the sum of the gradient's rows where `row_sum` is. `dx` may be overwritten.
at::Tensor activation_grad(at::Tensor dx, const LinearInput& input, at::Tensor recompute, at::Tensor& row_sum);

struct GateUp {
  at::Tensor gate, up;
};
/// Of a fused projection's output [n, 2 m]: views [n, m].
GateUp split_gate_up(const at::Tensor& rows);
/// x's sizes with another last one.
std::vector<std::int64_t> with_width(const at::Tensor& x, std::int64_t width);

}  // namespace trireme::nn
