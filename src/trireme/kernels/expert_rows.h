// kernels/expert_rows.h -- passes over rows of experts on the CPU: the sum of a token's rows in a fixed order, rows
// times gates.
//
// Tensors are contiguous, of the compute type; gates are float (double). Sums are in float (double), one rounding at
// the end. Each row or token is computed by one thread in one order: the same bits every time. Activations times gates
// are in expert_ops.h.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "trireme/kernels/activation.h"

namespace trireme::kernels {

/// to [tokens, width]: of each token t the sum of from[order[i]] for i in [first[t], first[t + 1]), in that order.
void sum_token_rows(at::Tensor& to, const at::Tensor& from, std::span<const std::int64_t> first,
                    std::span<const std::int64_t> order);
/// rows[r] *= gates[r].
void scale_expert_rows(at::Tensor& rows, const at::Tensor& gates);
/// grad_gates[r] = sum over columns of grad[r] * before[r]; then grad[r] *= gates[r].
void scale_expert_rows_backward(at::Tensor& grad, at::Tensor& grad_gates, const at::Tensor& before,
                                const at::Tensor& gates);

/// expert_activation() and its backward, for tensors on the CPU: expert_ops.h.
struct ExpertActivationCall {
  at::Tensor pre, gates;
  at::Tensor dy = {}, y = {}, dpre = {}, dgates = {};  ///< dy undefined: forward
  bool gated = false;
};
void expert_activation_on_cpu(const ExpertActivationCall& call, Activation kind);

}  // namespace trireme::kernels
