#include "trireme/nn/moe/row_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/expert_ops.h"
#include "trireme/kernels/expert_rows.h"

namespace trireme::nn::moe {
namespace {

void check_rows(const at::Tensor& rows, const at::Tensor& gates) {
  TRIREME_CHECK(rows.dim() == 2 && rows.is_contiguous(), "experts' rows lie one by one");
  TRIREME_CHECK(
      gates.numel() == rows.size(0) && gates.is_contiguous() && gates.scalar_type() == gate_type(rows.scalar_type()),
      "{} gates for {} rows", gates.numel(), rows.size(0));
}

at::Tensor sum_rows_on_gpu(const at::Tensor& rows, const TokenRows& of) {
  const std::size_t tokens = of.first.size() - 1;
  std::int64_t most = 1;
  for (std::size_t t = 0; t < tokens; ++t) most = std::max(most, of.first[t + 1] - of.first[t]);
  at::Tensor row_of = at::full({static_cast<std::int64_t>(tokens), most}, -1, at::kInt);
  for (std::size_t t = 0; t < tokens; ++t) {
    auto* to = row_of.mutable_data_ptr<std::int32_t>() + static_cast<std::int64_t>(t) * most;
    for (auto i = of.first[t]; i < of.first[t + 1]; ++i)
      *to++ = static_cast<std::int32_t>(of.rows[static_cast<std::size_t>(i)]);
  }
  return kernels::combine_rows(rows, row_of.to(rows.device()));
}

/// In the gates' type, rounded once.
void scale_on_gpu(at::Tensor& rows, const at::Tensor& gates) {
  rows.copy_(rows.to(gates.scalar_type()) * gates.view({-1, 1}));
}

}  // namespace

at::ScalarType gate_type(at::ScalarType compute) { return compute == at::kDouble ? at::kDouble : at::kFloat; }

at::Tensor sum_rows_of_tokens(const at::Tensor& rows, const TokenRows& of) {
  const auto tokens = static_cast<std::int64_t>(of.first.size()) - 1, width = rows.size(1);
  TRIREME_CHECK(rows.is_contiguous(), "experts' rows lie one by one");
  if (rows.is_cuda()) return sum_rows_on_gpu(rows, of);
  at::Tensor out = at::empty({tokens, width}, rows.options());
  kernels::sum_token_rows(out, rows, of.first, of.rows);
  return out;
}

void scale_rows_(at::Tensor& rows, const at::Tensor& gates) {
  check_rows(rows, gates);
  if (rows.is_cuda()) return scale_on_gpu(rows, gates);
  kernels::scale_expert_rows(rows, gates);
}

at::Tensor scale_rows_backward_(at::Tensor& grad, const at::Tensor& rows, const at::Tensor& gates) {
  check_rows(grad, gates);
  check_rows(rows, gates);
  if (rows.is_cuda()) {
    const at::Tensor of_gates = at::sum(grad.to(gates.scalar_type()) * rows.to(gates.scalar_type()), {1});
    scale_on_gpu(grad, gates);
    return of_gates;
  }
  at::Tensor grad_gates = at::empty({rows.size(0)}, gates.options());
  kernels::scale_expert_rows_backward(grad, grad_gates, rows, gates);
  return grad_gates;
}

}  // namespace trireme::nn::moe
