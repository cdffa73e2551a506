// kernels/activation.h -- the nonlinear middle of an MLP, forward and backward in one pass each.
//
// Tensors are [rows, width] with contiguous rows (the stride between rows is free: gate and up may be the halves of one
// fused projection); float, double, bfloat16 or half; arithmetic in float (double for double).
// Depends on: base.
#pragma once

namespace at {
class Tensor;
}

namespace trireme::kernels {

enum class Activation { kRelu, kGelu, kGeluTanh, kSilu };

/// y = f(x), or f(x + bias) where `bias` [width] is defined (x stays without it). y may be x.
void activation_forward(at::Tensor& y, const at::Tensor& x, const at::Tensor& bias, Activation kind);
/// dx = dy f'(x + bias); dx may be dy. `dbias` float (double) [width] is added to, or with `overwrite` made the sum;
/// undefined: left out. `y`, where given, is written too: f(x + bias) again, for a backward pass that did not keep it.
void activation_backward(at::Tensor& dx, at::Tensor& dbias, const at::Tensor& dy, const at::Tensor& x,
                         const at::Tensor& bias, Activation kind, at::Tensor* y = nullptr, bool overwrite = false);

/// y = f(gate) * up: SwiGLU with kSilu, GEGLU with kGelu.
void gated_forward(at::Tensor& y, const at::Tensor& gate, const at::Tensor& up, Activation kind);
/// dgate and dup may be gate and up themselves. `y` is written too where it is defined: f(gate) * up again, for a
/// backward pass that did not keep it.
void gated_backward(at::Tensor& dgate, at::Tensor& dup, at::Tensor& y, const at::Tensor& dy, const at::Tensor& gate,
                    const at::Tensor& up, Activation kind);

}  // namespace trireme::kernels
