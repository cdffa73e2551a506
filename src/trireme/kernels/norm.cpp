#include "trireme/kernels/norm.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/column_sums.h"
#include "trireme/kernels/cpu/norm_table.h"
#include "trireme/kernels/cpu/pick.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<NormTable> kNorm{kNormPlain, kNormV3, kNormV4, kNormV4Bf16};

const NormLoops& loops(const Norm& norm, Element element) {
  const NormTable& table = kNorm.pick();
  return (norm.kind == NormKind::kLayer ? table.layer : table.rms)[static_cast<int>(element)];
}

/// A weight as the loops read it: float (double), the offset added, `missing` where there is none. It is as wide as one
/// row, so making it costs nothing beside the rows.
at::Tensor prepared(const Arguments& arguments, const at::Tensor& weight, const char* name, double missing,
                    double offset, const Rows& x) {
  const auto type = x.element == Element::kDouble ? at::kDouble : at::kFloat;
  if (!weight.defined()) return at::full({x.width}, missing, type);
  const Element element = arguments.element(weight, name);
  if (weight.numel() != x.width || (element != x.element && element != sums_of(x.element))) {
    arguments.refuse(fmt::format("{} must be {} numbers of x's type, {}, or {}", describe(weight, name), x.width,
                                 to_string(x.element), to_string(sums_of(x.element))));
  }
  at::Tensor result = weight.to(type).contiguous();
  return offset == 0 ? result : result.add(offset);
}

}  // namespace

void norm_forward(const NormForward& call, const Norm& norm) {
  const Arguments arguments("norm_forward");
  const Rows x = arguments.rows(call.x, "x"), y = arguments.rows_like(call.y, "y", x, "x");
  Rows residual, sum;
  if (call.residual.defined()) {
    residual = arguments.rows_like(call.residual, "residual", x, "x");
    sum = arguments.rows_like(call.sum, "sum", x, "x");
  }
  const at::Tensor weight = prepared(arguments, call.weight, "weight", 1, norm.unit_offset ? 1 : 0, x);
  const at::Tensor bias = prepared(arguments, call.bias, "bias", 0, 0, x);
  const NormForwardLoop loop{.x = x.data,
                             .residual = residual.data,
                             .weight = weight.const_data_ptr(),
                             .bias = bias.const_data_ptr(),
                             .y = y.data,
                             .sum = sum.data,
                             .mean = arguments.sums(call.mean, "mean", x.rows, x.element),
                             .rstd = arguments.sums(call.rstd, "rstd", x.rows, x.element),
                             .x_stride = x.stride,
                             .residual_stride = residual.stride,
                             .y_stride = y.stride,
                             .sum_stride = sum.stride,
                             .width = x.width,
                             .epsilon = norm.epsilon};
  const auto forward = loops(norm, x.element).forward;
  at::parallel_for(0, x.rows, rows_worth_a_thread(x.width),
                   [&](std::int64_t begin, std::int64_t end) { forward(loop, begin, end); });
}

void norm_backward(const NormBackward& call, const Norm& norm) {
  const Arguments arguments("norm_backward");
  const Rows x = arguments.rows(call.x, "x");
  const Rows dy = arguments.rows_like(call.dy, "dy", x, "x"), dx = arguments.rows_like(call.dx, "dx", x, "x");
  Rows dsum;
  if (call.dsum.defined()) dsum = arguments.rows_like(call.dsum, "dsum", x, "x");
  const at::Tensor weight = prepared(arguments, call.weight, "weight", 1, norm.unit_offset ? 1 : 0, x);
  const NormBackwardLoop loop{.dy = dy.data,
                              .x = x.data,
                              .weight = weight.const_data_ptr(),
                              .mean = arguments.sums(call.mean, "mean", x.rows, x.element),
                              .rstd = arguments.sums(call.rstd, "rstd", x.rows, x.element),
                              .dsum = dsum.data,
                              .dx = dx.data,
                              .dy_stride = dy.stride,
                              .x_stride = x.stride,
                              .dsum_stride = dsum.stride,
                              .dx_stride = dx.stride,
                              .width = x.width};
  if (loop.rstd == nullptr || (norm.kind == NormKind::kLayer && loop.mean == nullptr)) {
    arguments.refuse("mean and rstd are undefined, but the backward pass starts from them",
                     "let norm_forward write them");
  }
  void* dweight = arguments.sums(call.dweight, "dweight", x.width, x.element);
  void* dbias = arguments.sums(call.dbias, "dbias", x.width, x.element);
  const auto backward = loops(norm, x.element).backward;
  if (dweight == nullptr && dbias == nullptr) {
    at::parallel_for(0, x.rows, rows_worth_a_thread(x.width),
                     [&](std::int64_t begin, std::int64_t end) { backward(loop, begin, end, nullptr, nullptr); });
    return;
  }
  ColumnSums sums(x.element, x.rows, x.width, dbias != nullptr ? 2 : 1);
  at::parallel_for(0, sums.blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      backward(loop, sums.begin_row(block), sums.end_row(block), sums.start(block, 0),
               dbias != nullptr ? sums.start(block, 1) : nullptr);
    }
  });
  if (dweight != nullptr) sums.add_to(dweight, 0);
  if (dbias != nullptr) sums.add_to(dbias, 1);
}

}  // namespace trireme::kernels
