#include "trireme/nn/moe/row_ops.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/expert_ops.h"

namespace trireme::nn::moe {
namespace {

/// About what is worth waking a thread for.
std::int64_t row_grain(std::int64_t width) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, width));
}

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
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, rows.scalar_type(), "sum_rows_of_tokens", [&] {
    using Sum = at::opmath_type<scalar_t>;
    const scalar_t* in = rows.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, tokens, row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      std::vector<Sum> sums(static_cast<std::size_t>(width));
      for (std::int64_t token = begin; token < end; ++token) {
        std::fill(sums.begin(), sums.end(), Sum{0});
        for (auto i = of.first[static_cast<std::size_t>(token)]; i < of.first[static_cast<std::size_t>(token) + 1];
             ++i) {
          const scalar_t* row = in + of.rows[static_cast<std::size_t>(i)] * width;
          for (std::int64_t c = 0; c < width; ++c) sums[static_cast<std::size_t>(c)] += static_cast<Sum>(row[c]);
        }
        for (std::int64_t c = 0; c < width; ++c) {
          to[token * width + c] = static_cast<scalar_t>(sums[static_cast<std::size_t>(c)]);
        }
      }
    });
  });
  return out;
}

void scale_rows_(at::Tensor& rows, const at::Tensor& gates) {
  check_rows(rows, gates);
  if (rows.is_cuda()) return scale_on_gpu(rows, gates);
  const std::int64_t width = rows.size(1);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, rows.scalar_type(), "scale_rows_", [&] {
    using Gate = at::opmath_type<scalar_t>;
    scalar_t* data = rows.mutable_data_ptr<scalar_t>();
    const Gate* gate = gates.const_data_ptr<Gate>();
    at::parallel_for(0, rows.size(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        scalar_t* row = data + r * width;
        for (std::int64_t c = 0; c < width; ++c) row[c] = static_cast<scalar_t>(static_cast<Gate>(row[c]) * gate[r]);
      }
    });
  });
}

at::Tensor scale_rows_backward_(at::Tensor& grad, const at::Tensor& rows, const at::Tensor& gates) {
  check_rows(grad, gates);
  check_rows(rows, gates);
  if (rows.is_cuda()) {
    const at::Tensor of_gates = at::sum(grad.to(gates.scalar_type()) * rows.to(gates.scalar_type()), {1});
    scale_on_gpu(grad, gates);
    return of_gates;
  }
  const std::int64_t width = rows.size(1);
  at::Tensor grad_gates = at::empty({rows.size(0)}, gates.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, rows.scalar_type(), "scale_rows_backward_", [&] {
    using Gate = at::opmath_type<scalar_t>;
    scalar_t* data = grad.mutable_data_ptr<scalar_t>();
    const scalar_t* before = rows.const_data_ptr<scalar_t>();
    const Gate* gate = gates.const_data_ptr<Gate>();
    Gate* of_gate = grad_gates.mutable_data_ptr<Gate>();
    at::parallel_for(0, rows.size(0), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        scalar_t* row = data + r * width;
        const scalar_t* other = before + r * width;
        Gate sum = 0;
        for (std::int64_t c = 0; c < width; ++c) {
          sum += static_cast<Gate>(row[c]) * static_cast<Gate>(other[c]);
          row[c] = static_cast<scalar_t>(static_cast<Gate>(row[c]) * gate[r]);
        }
        of_gate[r] = sum;
      }
    });
  });
  return grad_gates;
}

}  // namespace trireme::nn::moe
