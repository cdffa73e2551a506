#include "trireme/kernels/grouped_gemm.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>

#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/expert_ops.h"
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

/// Of the last dimension of both, and of what comes out.
bool fits_grouped_kernel(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16 && a.size(0) > 0 && a.size(-1) % 8 == 0 &&
         b.size(-1) % 8 == 0 && b.size(-2) % 8 == 0 && a.is_contiguous() && b.is_contiguous();
}

/// Reads `ends` back, which waits for the GPU.
std::vector<std::int64_t> offsets_of(const at::Tensor& ends) {
  const at::Tensor here = ends.to(at::kLong).cpu();
  std::vector<std::int64_t> offsets{0};
  offsets.insert(offsets.end(), here.const_data_ptr<std::int64_t>(),
                 here.const_data_ptr<std::int64_t>() + here.numel());
  return offsets;
}

}  // namespace

at::Tensor grouped_gemm(const GroupedGemm& call) {
  if (call.ends.defined()) {
    if (fits_grouped_kernel(call.a, call.b))
      return at::_grouped_mm(call.a, call.transpose_b ? call.b.transpose(1, 2) : call.b, call.ends);
    const std::vector<std::int64_t> offsets = offsets_of(call.ends);
    return grouped_gemm({.a = call.a, .b = call.b, .offsets = offsets, .transpose_b = call.transpose_b});
  }
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
  if (call.ends.defined()) {
    const at::ScalarType type = call.out.scalar_type();
    if (call.a.scalar_type() == at::kBFloat16 && call.b.scalar_type() == at::kBFloat16 && call.a.size(0) > 0 &&
        call.a.size(1) % 8 == 0 && call.b.size(1) % 8 == 0 && (type == at::kFloat || type == at::kBFloat16)) {
      at::Tensor out = call.out;
      return add_groups(out, at::_grouped_mm(call.a.t(), call.b, call.ends), call.ends, call.accumulate);
    }
    const std::vector<std::int64_t> offsets = offsets_of(call.ends);
    return grouped_weight_grad(
        {.a = call.a, .b = call.b, .offsets = offsets, .out = call.out, .accumulate = call.accumulate});
  }
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
