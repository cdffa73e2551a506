#include "trireme/kernels/expert_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cpu/expert_rows_table.h"
#include "trireme/kernels/cpu/pick.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<ExpertRowsTable> kCompiledExpertRows{kExpertRowsPlain, kExpertRowsV3, kExpertRowsV4,
                                                        kExpertRowsV4Bf16};

/// About what is worth waking a thread for.
std::int64_t expert_row_grain(std::int64_t width) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, width));
}

int checked_element(const at::Tensor& rows, std::string_view operation) {
  TRIREME_CHECK(rows.is_cpu() && rows.dim() == 2 && rows.is_contiguous(), "experts' rows lie one by one, on the CPU");
  return static_cast<int>(Arguments(operation).element(rows, "rows"));
}

void check_gates(const at::Tensor& gates, const at::Tensor& rows) {
  const at::ScalarType type = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  TRIREME_CHECK(gates.numel() == rows.size(0) && gates.is_contiguous() && gates.scalar_type() == type,
                "{} gates for {} rows", gates.numel(), rows.size(0));
}

}  // namespace

void sum_token_rows(at::Tensor& to, const at::Tensor& from, std::span<const std::int64_t> first,
                    std::span<const std::int64_t> order) {
  const int element = checked_element(from, "sum_token_rows");
  const auto tokens = static_cast<std::int64_t>(first.size()) - 1;
  TRIREME_CHECK(to.is_contiguous() && to.scalar_type() == from.scalar_type() && to.size(0) == tokens &&
                    to.size(1) == from.size(1),
                "sums of {} tokens", tokens);
  const TokenSumsLoop loop{.from = from.const_data_ptr(),
                           .to = to.mutable_data_ptr(),
                           .first = first.data(),
                           .rows = order.data(),
                           .width = from.size(1)};
  const auto sum = kCompiledExpertRows.pick().sum[element];
  at::parallel_for(0, tokens, expert_row_grain(loop.width),
                   [&](std::int64_t begin, std::int64_t end) { sum(loop, begin, end); });
}

void scale_expert_rows(at::Tensor& rows, const at::Tensor& gates) {
  const int element = checked_element(rows, "scale_expert_rows");
  check_gates(gates, rows);
  const GateRowsLoop loop{.rows = rows.mutable_data_ptr(),
                          .before = nullptr,
                          .gates = gates.const_data_ptr(),
                          .grad_gates = nullptr,
                          .width = rows.size(1)};
  const auto scale = kCompiledExpertRows.pick().scale[element];
  at::parallel_for(0, rows.size(0), expert_row_grain(loop.width),
                   [&](std::int64_t begin, std::int64_t end) { scale(loop, begin, end); });
}

void scale_expert_rows_backward(at::Tensor& grad, at::Tensor& grad_gates, const at::Tensor& before,
                                const at::Tensor& gates) {
  const int element = checked_element(grad, "scale_expert_rows_backward");
  check_gates(gates, grad);
  check_gates(grad_gates, grad);
  TRIREME_CHECK(before.is_contiguous() && before.scalar_type() == grad.scalar_type() && before.sizes() == grad.sizes(),
                "rows and their gradients");
  const GateRowsLoop loop{.rows = grad.mutable_data_ptr(),
                          .before = before.const_data_ptr(),
                          .gates = gates.const_data_ptr(),
                          .grad_gates = grad_gates.mutable_data_ptr(),
                          .width = grad.size(1)};
  const auto backward = kCompiledExpertRows.pick().scale_backward[element];
  at::parallel_for(0, grad.size(0), expert_row_grain(loop.width),
                   [&](std::int64_t begin, std::int64_t end) { backward(loop, begin, end); });
}

void expert_activation_on_cpu(const ExpertActivationCall& call, Activation kind) {
  const int element = checked_element(call.pre, "expert_activation");
  check_gates(call.gates, call.pre);
  const std::int64_t rows = call.pre.size(0), width = call.gated ? call.pre.size(1) / 2 : call.pre.size(1);
  TRIREME_CHECK(call.y.is_contiguous() && call.y.size(0) == rows && call.y.size(1) == width,
                "activations of {} rows of {}", rows, width);
  const bool backward = call.dy.defined();
  const ExpertActivationLoop loop{.pre = call.pre.const_data_ptr(),
                                  .gates = call.gates.const_data_ptr(),
                                  .dy = backward ? call.dy.const_data_ptr() : nullptr,
                                  .y = call.y.mutable_data_ptr(),
                                  .dpre = backward ? call.dpre.mutable_data_ptr() : nullptr,
                                  .dgates = backward ? call.dgates.mutable_data_ptr() : nullptr,
                                  .width = width};
  const ExpertRowsTable& table = kCompiledExpertRows.pick();
  const ExpertActivationLoops& loops = (call.gated ? table.gated : table.plain)[static_cast<int>(kind)][element];
  const auto run = backward ? loops.backward : loops.forward;
  at::parallel_for(0, rows, expert_row_grain(4 * width),
                   [&](std::int64_t begin, std::int64_t end) { run(loop, begin, end); });
}

}  // namespace trireme::kernels
