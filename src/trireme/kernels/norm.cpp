#include "trireme/kernels/norm.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "trireme/kernels/arguments.h"
#include "trireme/kernels/column_sums.h"
#include "trireme/kernels/cpu/norm_table.h"
#include "trireme/kernels/cpu/pick.h"
#include "trireme/kernels/cuda.h"

namespace trireme::kernels {
namespace {

constexpr Compiled<NormTable> kNorm{kNormPlain, kNormV3, kNormV4, kNormV4Bf16};

const NormLoops& loops(const Norm& norm, Element element) {
  const NormTable& table = kNorm.pick();
  return (norm.kind == NormKind::kLayer ? table.layer : table.rms)[static_cast<int>(element)];
}

Element check_weight(const Arguments& arguments, const at::Tensor& weight, const char* name, const Rows& x) {
  const Element element = arguments.element(weight, name);
  if (weight.numel() != x.width || (element != x.element && element != sums_of(x.element))) {
    arguments.refuse(fmt::format("{} must be {} elements of x's type, {}, or {}", describe(weight, name), x.width,
                                 to_string(x.element), to_string(sums_of(x.element))));
  }
  return element;
}

/// What GPUs read, which convert for themselves.
CudaNormWeights as_stored(const Arguments& arguments, const at::Tensor& weight, const at::Tensor& bias,
                          const Norm& norm, const Rows& x) {
  CudaNormWeights result{.offset = norm.unit_offset ? 1.0 : 0.0};
  for (const auto& [tensor, name] : {std::pair{&weight, "weight"}, std::pair{&bias, "bias"}}) {
    if (!tensor->defined()) continue;
    const bool is_weight = tensor == &weight;
    (is_weight ? result.weight_element : result.bias_element) = check_weight(arguments, *tensor, name, x);
    if (!tensor->is_contiguous()) arguments.refuse(fmt::format("{} must be contiguous", describe(*tensor, name)));
    (is_weight ? result.weight : result.bias) = tensor->const_data_ptr();
  }
  return result;
}

/// A weight as the loops read it: float (double), the offset added, `missing` where there is none. It is as wide as one
/// row, so making it costs nothing beside the rows.
at::Tensor prepared(const Arguments& arguments, const at::Tensor& weight, const char* name, double missing,
                    double offset, const Rows& x) {
  const auto type = x.element == Element::kDouble ? at::kDouble : at::kFloat;
  if (!weight.defined()) return at::full({x.width}, missing, type);
  check_weight(arguments, weight, name, x);
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
  at::Tensor weight, bias;
  if (!arguments.on_gpu()) {
    weight = prepared(arguments, call.weight, "weight", 1, norm.unit_offset ? 1 : 0, x);
    bias = prepared(arguments, call.bias, "bias", 0, 0, x);
  }
  const NormForwardLoop loop{.x = x.data,
                             .residual = residual.data,
                             .weight = arguments.on_gpu() ? nullptr : weight.const_data_ptr(),
                             .bias = arguments.on_gpu() ? nullptr : bias.const_data_ptr(),
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
  if (arguments.on_gpu()) {
    const CudaNormWeights weights = as_stored(arguments, call.weight, call.bias, norm, x);
    return check_cuda(
        cuda().norm_forward(loop, weights, x.element, norm.kind == NormKind::kLayer, x.rows, cuda_stream()),
        "norm_forward");
  }
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
  at::Tensor weight;
  if (!arguments.on_gpu()) weight = prepared(arguments, call.weight, "weight", 1, norm.unit_offset ? 1 : 0, x);
  const NormBackwardLoop loop{.dy = dy.data,
                              .x = x.data,
                              .weight = arguments.on_gpu() ? nullptr : weight.const_data_ptr(),
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
  if (!arguments.on_gpu() || x.rows == 0) {
    if (call.begin_weight && dweight != nullptr) call.dweight.zero_();
    if (call.begin_bias && dbias != nullptr) call.dbias.zero_();
  }
  if (arguments.on_gpu()) {
    const CudaNormWeights weights = as_stored(arguments, call.weight, at::Tensor(), norm, x);
    at::Tensor workspace;
    CudaColumnSums sums{
        .first = dweight, .second = dbias, .begin_first = call.begin_weight, .begin_second = call.begin_bias};
    if (dweight != nullptr || dbias != nullptr) {
      workspace = cuda_sum_workspace(call.x, x.element, x.width, 2);
      sums.partial = workspace.mutable_data_ptr();
    }
    return check_cuda(
        cuda().norm_backward(loop, weights, sums, x.element, norm.kind == NormKind::kLayer, x.rows, cuda_stream()),
        "norm_backward");
  }
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
