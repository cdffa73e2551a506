#include "trireme/kernels/few_rows_gemm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cpu/few_rows_gemm_table.h"
#include "trireme/kernels/cpu/pick.h"
#include "trireme/kernels/invariant_gemm.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<FewRowsGemmTable> kCompiledFewRowsGemm{kFewRowsGemmPlain, kFewRowsGemmV3, kFewRowsGemmV4,
                                                          kFewRowsGemmV4Bf16};
constexpr std::int64_t kFewRows = 32;
constexpr std::int64_t kColumnsOfATask = 64;  // whole cache lines of the result
constexpr std::int64_t kWorkOfAThread = 1 << 18;

}  // namespace

bool fits_few_rows_gemm(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat && x.dim() == 2 &&
         weight.dim() == 2 && x.size(0) <= kFewRows && x.stride(1) == 1 && weight.stride(1) == 1;
}

void add_few_rows_gemm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, bool reversed) {
  const Arguments arguments("few_rows_gemm");
  const Rows to = arguments.rows(out, "out"), in = arguments.rows(x, "x"), of = arguments.rows(weight, "weight");
  if (arguments.on_gpu()) arguments.refuse("runs on the CPU, but the tensors are on a GPU");
  if (to.element != Element::kFloat || in.element != Element::kFloat || of.element != Element::kFloat)
    arguments.refuse(
        fmt::format("{}, {} and {} must be float", describe(out, "out"), describe(x, "x"), describe(weight, "weight")));
  if (in.rows != to.rows || in.width != of.rows || of.width != to.width)
    arguments.refuse(
        fmt::format("{} is not {} times {}", describe(out, "out"), describe(x, "x"), describe(weight, "weight")));
  const FewRowsGemmLoop call{.x = static_cast<const float*>(in.data),
                             .weight = static_cast<const float*>(of.data),
                             .out = static_cast<float*>(to.data),
                             .x_stride = in.stride,
                             .weight_stride = of.stride,
                             .out_stride = to.stride,
                             .m = in.rows,
                             .k = in.width,
                             .reversed = reversed};
  const auto add = kCompiledFewRowsGemm.pick().add;
  const std::int64_t tasks = (of.width + kColumnsOfATask - 1) / kColumnsOfATask;
  const std::int64_t work = std::max<std::int64_t>(1, kColumnsOfATask * call.m * call.k);
  at::parallel_for(0, tasks, std::max<std::int64_t>(1, kWorkOfAThread / work),
                   [&](std::int64_t begin, std::int64_t end) {
                     add(call, begin * kColumnsOfATask, std::min(end * kColumnsOfATask, of.width));
                   });
}

at::Tensor few_rows_gemm_transposed(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  invariant_gemm(out, x, weight, at::Tensor());
  return out;
}

at::Tensor transposed_copy(const at::Tensor& matrix) {
  const Arguments arguments("transposed_copy");
  const Rows from = arguments.rows(matrix, "matrix");
  if (arguments.on_gpu() || from.element != Element::kFloat || matrix.dim() != 2)
    arguments.refuse(fmt::format("{} must be a float matrix on the CPU", describe(matrix, "matrix")));
  at::Tensor out = at::empty({from.width, from.rows}, matrix.options());
  const float* const in = static_cast<const float*>(from.data);
  float* const to = out.mutable_data_ptr<float>();
  constexpr std::int64_t kBlock = 16;  // a cache line each way
  at::parallel_for(0, (from.width + kBlock - 1) / kBlock, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < from.rows; row += kBlock) {
      const std::int64_t last_row = std::min(row + kBlock, from.rows);
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t last = std::min((block + 1) * kBlock, from.width);
        for (std::int64_t column = block * kBlock; column < last; ++column) {
          for (std::int64_t i = row; i < last_row; ++i) to[column * from.rows + i] = in[i * from.stride + column];
        }
      }
    }
  });
  return out;
}

}  // namespace trireme::kernels
