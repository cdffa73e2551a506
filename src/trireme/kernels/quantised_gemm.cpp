#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "trireme/base/error.h"
#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/cuda_inference_table.h"
#include "trireme/kernels/skinny_gemm.h"

namespace trireme::kernels {
namespace {

constexpr float kLeastRow = 1e-9F;  // a row of zeros is divided by something

}  // namespace

QuantisedRows quantise_rows(const at::Tensor& x) {
  const Arguments arguments("quantise_rows");
  const Element element = arguments.element(x, "x");
  if (!x.is_cuda() || x.dim() != 2 || x.stride(1) != 1 || x.size(1) % 16 != 0 || x.stride(0) % 8 != 0) {
    arguments.refuse(describe(x, "x") + " must be [m, k] on a GPU, k a multiple of 16, with contiguous rows");
  }
  QuantisedRows out{at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn)),
                    at::empty({x.size(0), 1}, x.options().dtype(at::kFloat))};
  check_cuda(cuda_inference().quantise_rows({.x = x.const_data_ptr(),
                                             .rows = x.size(0),
                                             .width = x.size(1),
                                             .stride = x.stride(0),
                                             .codes = out.codes.mutable_data_ptr(),
                                             .scales = out.scales.mutable_data_ptr<float>()},
                                            element, cuda_stream()),
             "quantise_rows");
  return out;
}

bool runs_quantised_gemm(const SkinnyGemm& call) {
  const QuantisedWeight* weight = call.quantised;
  if (weight == nullptr || !weight->values.is_cuda() || !call.x.is_cuda() || call.x.dim() != 2) return false;
  if (call.x.scalar_type() != at::kBFloat16 || call.x.size(0) == 0 || call.x.size(1) != weight->columns) return false;
  return weight->format == WeightFormat::kE4m3 && weight->values.is_contiguous() && weight->scales.is_contiguous() &&
         weight->columns % 16 == 0 && weight->rows % 16 == 0 && weight->scales.numel() == weight->rows;
}

at::Tensor quantised_gemm(const SkinnyGemm& call) {
  TRIREME_CHECK(runs_quantised_gemm(call), "a GEMM with a weight in FP8 that does not run on this GPU");
  const QuantisedWeight& weight = *call.quantised;
  // By ATen until quantise_rows() has run on a card beside it.
  const at::Tensor x = call.x.to(at::kFloat);
  const at::Tensor scales = at::clamp_min(at::amax(at::abs(x), {1}, /*keepdim=*/true), kLeastRow) * (1 / 448.0F);
  at::Tensor out = at::_scaled_mm((x / scales).to(at::kFloat8_e4m3fn), weight.values.t(), scales,
                                  weight.scales.view({1, weight.rows}), std::nullopt, std::nullopt,
                                  call.x.scalar_type(), /*use_fast_accum=*/true);
  if (call.bias.defined()) out.add_(call.bias);
  if (call.residual.defined()) out.add_(call.residual);
  return out;
}

}  // namespace trireme::kernels
