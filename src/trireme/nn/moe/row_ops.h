// nn/moe/row_ops.h -- passes over rows of tokens: the sum of a token's rows in a fixed order, and rows times gates.
//
// Tensors are contiguous, of the compute type; gates are float (double). Sums are in float (double), one rounding at
// the end. Each row or token is computed by one thread in one order: no atomics, the same bits every time. On a GPU
// these serve routers whose choices the host makes; what kernels/expert_ops.h routes does not come by here.
// Depends on: base, kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace trireme::nn::moe {

/// Float, or double where the model computes in it.
at::ScalarType gate_type(at::ScalarType compute);

/// Which rows belong to each token, in the order in which they are summed.
struct TokenRows {
  std::span<const std::int64_t> first;  ///< [tokens + 1]
  std::span<const std::int64_t> rows;
};
/// [tokens, width]: the sum of each token's rows of `rows`; 0 for a token without any.
at::Tensor sum_rows_of_tokens(const at::Tensor& rows, const TokenRows& of);

/// rows[r] *= gates[r].
void scale_rows_(at::Tensor& rows, const at::Tensor& gates);
/// Backward of scale_rows_: gives the gates' gradient, sum over columns of grad[r] * rows[r], with rows before they
/// were scaled; grad[r] *= gates[r].
at::Tensor scale_rows_backward_(at::Tensor& grad, const at::Tensor& rows, const at::Tensor& gates);

}  // namespace trireme::nn::moe
