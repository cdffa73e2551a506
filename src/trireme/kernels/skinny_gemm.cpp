#include "trireme/kernels/skinny_gemm.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "trireme/base/error.h"
#include "trireme/kernels/arguments.h"
#include "trireme/kernels/cuda.h"
#include "trireme/kernels/cuda_inference_table.h"

namespace trireme::kernels {
namespace {

bool aligned16(const at::Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 16 == 0; }
bool wide_matrix(const at::Tensor& x) {
  const std::int64_t grain = 16 / x.element_size();
  return x.dim() == 2 && (x.stride(1) == 1 || x.size(1) == 1) && x.stride(0) % grain == 0 && aligned16(x);
}
bool same_side(const at::Tensor& tensor, const at::Tensor& x) {
  return !tensor.defined() || (tensor.is_cuda() && tensor.scalar_type() == x.scalar_type());
}

bool fits_quantised(const QuantisedWeight& weight, const at::Tensor& x) {
  if (x.scalar_type() != at::kBFloat16 || !weight.values.is_cuda() || weight.columns != x.size(1)) return false;
  if (!weight.values.is_contiguous() || !aligned16(weight.values) || !weight.scales.is_contiguous()) return false;
  if (weight.format == WeightFormat::kInt4) return weight.group % 128 == 0 && weight.columns % 128 == 0;
  return weight.columns % 16 == 0 && weight.scales.numel() == weight.rows;
}

}  // namespace

bool runs_skinny_gemm(const SkinnyGemm& call) {
  const at::Tensor& x = call.x;
  if (!x.is_cuda() || x.dim() != 2 || x.size(0) == 0 || x.size(0) > kMostSkinnyRows || x.size(1) % 8 != 0) return false;
  if ((x.scalar_type() != at::kBFloat16 && x.scalar_type() != at::kHalf) || !wide_matrix(x)) return false;
  if (!same_side(call.bias, x) || !same_side(call.residual, x)) return false;
  if (call.residual.defined() && (call.residual.dim() != 2 || call.residual.stride(1) != 1)) return false;
  if (call.bias.defined() && !call.bias.is_contiguous()) return false;
  if (call.quantised != nullptr) return fits_quantised(*call.quantised, x);
  return same_side(call.weight, x) && wide_matrix(call.weight) && call.weight.size(1) == x.size(1);
}

bool fits_skinny_gemm(const SkinnyGemm& call) {
  constexpr std::int64_t kMostNumbers = std::int64_t{1} << 24, kMostOfThem = 8;  // weights and rows, timed on an H200
  if (!runs_skinny_gemm(call)) return false;
  return call.quantised != nullptr || (call.weight.numel() <= kMostNumbers && call.x.size(0) <= kMostOfThem);
}

namespace {

/// Of tensors as they are; `out` may be undefined where nothing is launched.
CudaSkinnyGemm body_of(const SkinnyGemm& call, at::Tensor& out) {
  const QuantisedWeight* quantised = call.quantised;
  const bool stored = quantised != nullptr;
  const std::int64_t m = call.x.size(0), k = call.x.size(1), n = stored ? quantised->rows : call.weight.size(0);
  const std::int64_t width = call.gated ? n / 2 : n;
  if (!out.defined()) out = at::empty({m, width}, call.x.options());
  CudaSkinnyGemm body{.x = call.x.const_data_ptr(),
                      .weight = stored ? quantised->values.const_data_ptr() : call.weight.const_data_ptr(),
                      .bias = call.bias.defined() ? call.bias.const_data_ptr() : nullptr,
                      .residual = call.residual.defined() ? call.residual.const_data_ptr() : nullptr,
                      .out = out.mutable_data_ptr(),
                      .element = call.x.scalar_type() == at::kHalf ? Element::kHalf : Element::kBfloat16,
                      .m = m,
                      .n = n,
                      .k = k,
                      .x_stride = call.x.stride(0),
                      .weight_stride = stored ? quantised->values.size(1) : call.weight.stride(0),
                      .out_stride = width,
                      .residual_stride = call.residual.defined() ? call.residual.stride(0) : 0};
  if (stored) {
    body.format = quantised->format == WeightFormat::kInt8   ? CudaSkinnyGemm::kInt8
                  : quantised->format == WeightFormat::kInt4 ? CudaSkinnyGemm::kInt4
                                                             : CudaSkinnyGemm::kE4m3;
    body.scales = quantised->scales.const_data_ptr<float>();
    body.zeros = quantised->zeros.defined() ? quantised->zeros.const_data_ptr<float>() : nullptr;
    body.group = quantised->group;
  }
  body.gated = call.gated;
  return body;
}

}  // namespace

at::Tensor skinny_gemm(const SkinnyGemm& call) {
  TRIREME_CHECK(runs_skinny_gemm(call) && !call.gated, "a GEMM of {} rows that the kernel for few does not take",
                call.x.size(0));
  at::Tensor out;
  check_cuda(cuda_inference().skinny_gemm(body_of(call, out), cuda_stream()), "skinny_gemm");
  return out;
}

bool runs_stream_gemm(const SkinnyGemm& call) {
  if (!runs_skinny_gemm(call) || call.x.scalar_type() != at::kBFloat16) return false;
  if (call.gated && (call.bias.defined() || call.residual.defined())) return false;
  at::Tensor nowhere = call.x;  // sizes decide, not where the result goes
  return cuda_inference().stream_gemm_fits(body_of(call, nowhere)) == nullptr;
}

bool fits_stream_gemm(const SkinnyGemm& call) {
  constexpr std::int64_t kLongRow = 8192;  // timed on an H200
  const QuantisedWeight* weight = call.quantised;
  if (weight == nullptr || call.x.dim() != 2 || call.x.size(0) != 1) return false;
  if (weight->format == WeightFormat::kInt4 || weight->columns < kLongRow) return false;
  return runs_stream_gemm(call);
}

at::Tensor stream_gemm(const SkinnyGemm& call) {
  TRIREME_CHECK(runs_stream_gemm(call), "a GEMM of {} rows that the kernel that streams weights does not take",
                call.x.size(0));
  at::Tensor out;
  check_cuda(cuda_inference().stream_gemm(body_of(call, out), cuda_stream()), "stream_gemm");
  return out;
}

void argmax_tokens(at::Tensor& tokens, const at::Tensor& logits) {
  const Arguments arguments("argmax_tokens");
  const Element element = arguments.element(logits, "logits");
  if (!logits.is_cuda() || logits.dim() != 2 || logits.stride(1) != 1) {
    arguments.refuse(describe(logits, "logits") + " must be [rows, vocabulary] on a GPU, with contiguous rows");
  }
  arguments.numbers(tokens, "tokens", logits.size(0));
  const CudaArgmax call{.logits = logits.const_data_ptr(),
                        .element = element,
                        .rows = logits.size(0),
                        .width = logits.size(1),
                        .stride = logits.stride(0),
                        .tokens = tokens.mutable_data_ptr<std::int64_t>()};
  check_cuda(cuda_inference().argmax(call, cuda_stream()), "argmax_tokens");
}

}  // namespace trireme::kernels
