// optim/elementwise.h -- what optimizers without a fused kernel share: scaled gradients, decoupled decay.
//
// Several passes of ATen over memory, on any device; bits do not depend on the number of threads.
// Depends on: nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trireme/nn/param.h"

namespace trireme::optim {

/// A new tensor in the type that updates of `like` are computed in (not bf16): `gradient` times `scale`.
at::Tensor scaled_gradient(const at::Tensor& gradient, const at::Tensor& like, double scale);
/// master <- master - rate (direction + decay master), and its rounded copy. `rounding`: not 0 where the master is bf16
/// and stochastically rounded (kernels/update.h).
void apply_decoupled(nn::Param& param, const at::Tensor& direction, double rate, double decay, std::uint64_t rounding);
/// The type that a parameter's update is computed in, and its state is kept in.
at::ScalarType update_type(const at::Tensor& master);
/// The compute copy, where the master itself is not computed with.
void write_copy(nn::Param& param);

}  // namespace trireme::optim
