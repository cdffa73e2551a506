// optim/gradients.h -- what is asked of all gradients together before a step: are they there, how long are they.
//
// Clipping is no pass of its own: the norm gives a factor, and the update multiplies by it. Numbers that are NaN or Inf
// show in the norm.
// Depends on: base, kernels, nn.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trireme/nn/param.h"

namespace trireme::optim {

/// A ConfigError that names the trainable parameters without a gradient.
void require_gradients(const nn::Params& params);

/// The sum of squares of each trainable parameter's gradient, in their order, as far as this rank counts it
/// (Param::counted); the same for any number of threads.
std::vector<double> gradient_squares(const nn::Params& params);
/// Likewise of any tensor that lies as the parameter does.
double counted_squares(const nn::Param& param, const at::Tensor& tensor);

/// What gradients of this norm are multiplied by to have at most `clip`; 1 when they have, or when `clip` is 0.
double clip_factor(double norm, double clip);

/// The trainable parameters whose squares are NaN or Inf.
std::vector<std::string> non_finite(const nn::Params& params, std::span<const double> squares);

}  // namespace trireme::optim
