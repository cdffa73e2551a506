// optim/newton_schulz.h -- the nearest semi-orthogonal matrix, about: U V^T for M = U S V^T (Jordan et al. 2024).
//
// Five iterations of X <- a X + (b A + c A^2) X with A = X X^T take singular values of a matrix of norm 1 to between
// about 0.7 and 1.2. Matrices of equal shape run as one batch.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace trireme::optim {

/// [.., m, n], in any floating type.
at::Tensor newton_schulz(const at::Tensor& matrices, int steps);

/// Each in place, computed in `type`; undefined ones are left out. Those of equal shape, transposed ones too, make a
/// batch.
void orthogonalise(std::span<at::Tensor> matrices, int steps, at::ScalarType type);

}  // namespace trireme::optim
