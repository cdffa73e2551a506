#include "trireme/kernels/sum_rows.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/column_sums.h"
#include "trireme/kernels/cpu/pick.h"
#include "trireme/kernels/cpu/sum_rows_table.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<SumRowsTable> kCompiledSumRows{kSumRowsPlain, kSumRowsV3, kSumRowsV4, kSumRowsV4Bf16};

}  // namespace

void add_row_sum(at::Tensor& totals, const at::Tensor& x, bool overwrite) {
  const Arguments arguments("add_row_sum");
  const Rows in = arguments.rows(x, "x");
  void* const to = arguments.sums(totals, "totals", in.width, in.element);
  if (to == nullptr) arguments.refuse("totals must be defined");
  if (overwrite && (!arguments.on_gpu() || in.rows == 0)) totals.zero_();
  const SumRowsLoop loop{.x = in.data, .stride = in.stride, .width = in.width};
  if (arguments.on_gpu()) {
    const at::Tensor workspace = cuda_sum_workspace(x, in.element, in.width, 1);
    const CudaColumnSums sums{.partial = workspace.mutable_data_ptr(), .first = to, .begin_first = overwrite};
    return check_cuda(cuda().sum_rows(loop, sums, in.element, in.rows, cuda_stream()), "add_row_sum");
  }
  const auto add = kCompiledSumRows.pick().add[static_cast<int>(in.element)];
  ColumnSums sums(in.element, in.rows, in.width, 1);
  at::parallel_for(0, sums.blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      add(loop, sums.begin_row(block), sums.end_row(block), sums.start(block, 0));
    }
  });
  sums.add_to(to, 0);
}

}  // namespace trireme::kernels
