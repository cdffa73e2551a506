#include "trireme/kernels/lstm_cell.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cpu/lstm_cell_table.h"
#include "trireme/kernels/cpu/pick.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<LstmCellTable> kCompiledLstmCell{kLstmCellPlain, kLstmCellV3, kLstmCellV4, kLstmCellV4Bf16};
constexpr std::int64_t kUnitsOfAThread = 4096;

/// [n, units] like the gates, contiguous; undefined stays so.
at::Tensor of_units(const Arguments& arguments, const at::Tensor& tensor, const at::Tensor& gates,
                    std::string_view name) {
  if (!tensor.defined()) return tensor;
  if (tensor.dim() != 2 || tensor.size(0) != gates.size(0) || tensor.size(1) != gates.size(2) ||
      tensor.scalar_type() != gates.scalar_type() || tensor.device() != gates.device())
    arguments.refuse(fmt::format("{} does not fit {}", describe(tensor, name), describe(gates, "gates")));
  return tensor.contiguous();
}

void check_gates(const Arguments& arguments, const at::Tensor& gates) {
  if (gates.dim() != 3 || gates.size(1) != 4 || !gates.is_contiguous() || !fits_lstm_cell(gates))
    arguments.refuse(
        fmt::format("{} must be [n, 4, units], float or double, contiguous and on the CPU", describe(gates, "gates")));
}

void over_rows(const at::Tensor& gates, const LstmCellLoop& call, const LstmCellFunction (&functions)[2]) {
  const LstmCellFunction function = functions[gates.scalar_type() == at::kDouble ? 1 : 0];
  at::parallel_for(0, gates.size(0), std::max<std::int64_t>(1, kUnitsOfAThread / std::max<std::int64_t>(1, call.units)),
                   [&](std::int64_t begin, std::int64_t end) { function(call, begin, end); });
}

}  // namespace

bool fits_lstm_cell(const at::Tensor& gates) {
  return gates.is_cpu() && (gates.scalar_type() == at::kFloat || gates.scalar_type() == at::kDouble);
}

LstmState lstm_cell(at::Tensor& gates, const at::Tensor& c) {
  const Arguments arguments("lstm_cell");
  check_gates(arguments, gates);
  const at::Tensor before = of_units(arguments, c, gates, "c");
  const std::vector<std::int64_t> sizes{gates.size(0), gates.size(2)};
  LstmState state{.h = at::empty(sizes, gates.options()), .c = at::empty(sizes, gates.options())};
  over_rows(gates,
            {.gates = gates.data_ptr(),
             .c_in = before.const_data_ptr(),
             .c = state.c.data_ptr(),
             .h = state.h.data_ptr(),
             .dh = nullptr,
             .dc = nullptr,
             .dsums = nullptr,
             .dc_in = nullptr,
             .units = gates.size(2)},
            kCompiledLstmCell.pick().forward);
  return state;
}

LstmCellGrad lstm_cell_backward(const at::Tensor& gates, const at::Tensor& c_in, const at::Tensor& c,
                                const at::Tensor& dh, const at::Tensor& dc) {
  const Arguments arguments("lstm_cell_backward");
  check_gates(arguments, gates);
  const at::Tensor before = of_units(arguments, c_in, gates, "c_in"), after = of_units(arguments, c, gates, "c");
  const at::Tensor of_h = of_units(arguments, dh, gates, "dh"), of_c = of_units(arguments, dc, gates, "dc");
  LstmCellGrad grad{.gates = at::empty_like(gates), .c = at::empty_like(after)};
  over_rows(gates,
            {.gates = const_cast<void*>(gates.const_data_ptr()),
             .c_in = before.const_data_ptr(),
             .c = const_cast<void*>(after.const_data_ptr()),
             .h = nullptr,
             .dh = of_h.defined() ? of_h.const_data_ptr() : nullptr,
             .dc = of_c.defined() ? of_c.const_data_ptr() : nullptr,
             .dsums = grad.gates.data_ptr(),
             .dc_in = grad.c.data_ptr(),
             .units = gates.size(2)},
            kCompiledLstmCell.pick().backward);
  return grad;
}

}  // namespace trireme::kernels
