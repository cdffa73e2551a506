#include "trireme/nn/moe/fp8_experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/kernels/gemm.h"
#include "trireme/nn/fp8.h"

namespace trireme::nn::moe {
namespace {

struct RowRange {
  std::int64_t first = 0, count = 0;
};

RowRange rows_of_group(std::span<const std::int64_t> offsets, std::int64_t group) {
  const std::int64_t first = offsets[static_cast<std::size_t>(group)];
  return {first, offsets[static_cast<std::size_t>(group) + 1] - first};
}

/// Those rows with zeros below them, as many as FP8 GEMMs take.
at::Tensor with_zeros_below(const Param& weight, const at::Tensor& rows, const RowRange& range) {
  const std::int64_t grain = weight.gemm == spec::GemmPrecision::kFp8Blocks ? 128 : 16,
                     whole = (range.count + grain - 1) / grain * grain;
  const at::Tensor mine = rows.narrow(0, range.first, range.count);
  if (whole == range.count) return mine.contiguous();
  at::Tensor out = at::zeros({whole, rows.size(1)}, rows.options());
  out.narrow(0, 0, range.count).copy_(mine);
  return out;
}

}  // namespace

at::Tensor fp8_grouped_gemm(const Fp8GroupedGemm& call) {
  const std::int64_t groups = call.matrices.size(0);
  TRIREME_CHECK(static_cast<std::int64_t>(call.offsets.size()) == groups + 1, "{} offsets for {} experts",
                call.offsets.size(), groups);
  at::Tensor out = at::empty({call.rows.size(0), call.matrices.size(call.backward ? 2 : 1)}, call.rows.options());
  for (std::int64_t group = 0; group < groups; ++group) {
    const RowRange range = rows_of_group(call.offsets, group);
    if (range.count == 0) continue;
    const Fp8Role role = call.backward ? Fp8Role::kGradient : Fp8Role::kActivation;
    const kernels::Fp8Matrix a = quantise(call.weight, with_zeros_below(call.weight, call.rows, range),
                                          {.role = role, .rows = true, .note = call.training})
                                     .rows;
    const kernels::Fp8Pair b =
        quantise(call.weight, call.matrices.select(0, group),
                 {.role = Fp8Role::kWeight, .rows = !call.backward, .columns = call.backward, .note = call.training});
    const at::Tensor product =
        kernels::gemm(
            {.a = a, .b = call.backward ? b.columns : b.rows, .transpose_b = true, .out_type = call.rows.scalar_type()})
            .out;
    out.narrow(0, range.first, range.count).copy_(product.narrow(0, 0, range.count));
  }
  return out;
}

void fp8_grouped_weight_grad(const Fp8GroupedWeightGrad& call) {
  for (std::int64_t group = 0; group < call.out.size(0); ++group) {
    const RowRange range = rows_of_group(call.offsets, group);
    at::Tensor out = call.out.select(0, group);
    if (range.count == 0) {
      if (!call.accumulate) out.zero_();
      continue;
    }
    const auto columns = [&](const at::Tensor& rows, Fp8Role role) {
      return quantise(call.weight, with_zeros_below(call.weight, rows, range), {.role = role, .columns = true}).columns;
    };
    kernels::gemm({.a = columns(call.dy, Fp8Role::kGradient),
                   .b = columns(call.x, Fp8Role::kActivation),
                   .transpose_b = true,
                   .out = out,
                   .accumulate = call.accumulate});
  }
}

}  // namespace trireme::nn::moe
