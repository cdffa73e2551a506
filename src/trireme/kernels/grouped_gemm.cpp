#include "trireme/kernels/grouped_gemm.h"

#include <ATen/ops/empty.h>

#include "trireme/base/error.h"
#include "trireme/kernels/gemm.h"

namespace trireme::kernels {
namespace {

/// Groups are as many as the matrices, and their rows are all of those there.
void check_groups(std::span<const std::int64_t> offsets, std::int64_t groups, std::int64_t rows) {
  TRIREME_CHECK(static_cast<std::int64_t>(offsets.size()) == groups + 1, "{} offsets for {} groups", offsets.size(),
                groups);
  TRIREME_CHECK(offsets.front() == 0 && offsets.back() == rows, "groups have rows {} to {} of {}", offsets.front(),
                offsets.back(), rows);
}

}  // namespace

at::Tensor grouped_gemm(const GroupedGemm& call) {
  check_groups(call.offsets, call.b.size(0), call.a.size(0));
  at::Tensor out = at::empty({call.a.size(0), call.b.size(call.transpose_b ? 1 : 2)}, call.a.options());
  for (std::int64_t group = 0; group < call.b.size(0); ++group) {
    const std::int64_t first = call.offsets[static_cast<std::size_t>(group)];
    const std::int64_t rows = call.offsets[static_cast<std::size_t>(group) + 1] - first;
    if (rows == 0) continue;
    gemm({.a = call.a.narrow(0, first, rows),
          .b = call.b.select(0, group),
          .transpose_b = call.transpose_b,
          .out = out.narrow(0, first, rows)});
  }
  return out;
}

void grouped_weight_grad(const GroupedWeightGrad& call) {
  check_groups(call.offsets, call.out.size(0), call.a.size(0));
  for (std::int64_t group = 0; group < call.out.size(0); ++group) {
    const std::int64_t first = call.offsets[static_cast<std::size_t>(group)];
    const std::int64_t rows = call.offsets[static_cast<std::size_t>(group) + 1] - first;
    at::Tensor out = call.out.select(0, group);
    if (rows == 0) {
      if (!call.accumulate) out.zero_();
      continue;
    }
    gemm({.a = call.a.narrow(0, first, rows),
          .b = call.b.narrow(0, first, rows),
          .transpose_a = true,
          .out = out,
          .accumulate = call.accumulate});
  }
}

}  // namespace trireme::kernels
