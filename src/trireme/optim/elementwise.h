// optim/elementwise.h -- what optimizers without a fused kernel share: scaled gradients, decoupled decay.
//
// Several passes of ATen over memory, on any device; bits do not depend on the number of threads.
// Depends on: nn.
#pragma once

#include <ATen/core/Tensor.h>

#include "trireme/nn/param.h"

namespace trireme::optim {

/// A new tensor in the type of `like`: `gradient` times `scale`.
at::Tensor scaled_gradient(const at::Tensor& gradient, const at::Tensor& like, double scale);
/// master <- master - rate (direction + decay master), and its rounded copy.
void apply_decoupled(nn::Param& param, const at::Tensor& direction, double rate, double decay);
/// The compute copy, where the master itself is not computed with.
void write_copy(nn::Param& param);

}  // namespace trireme::optim
