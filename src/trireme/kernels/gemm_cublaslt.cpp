#include "trireme/kernels/gemm_cublaslt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/kernels/gemm_execute.h"

namespace trireme::kernels {
namespace {

std::optional<CudaGemm::Type> cublaslt_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return CudaGemm::kFloat;
    case at::kHalf:
      return CudaGemm::kHalf;
    case at::kBFloat16:
      return CudaGemm::kBfloat16;
    case at::kFloat8_e4m3fn:
      return CudaGemm::kE4m3;
    case at::kFloat8_e5m2:
      return CudaGemm::kE5m2;
    default:
      return std::nullopt;
  }
}
const char* name_of(CudaGemm::Type type) {
  constexpr std::array kNames{"fp32", "fp16", "bf16", "e4m3", "e5m2"};
  return kNames.at(static_cast<std::size_t>(type));
}

/// A matrix as it is stored: row-major, or transposed.
struct Stored {
  bool transposed = false;
  std::int64_t stride = 0;
};
std::optional<Stored> stored(const at::Tensor& x, std::int64_t grain) {
  // A dimension of one has any stride.
  const bool row_major = x.stride(1) == 1 && (x.stride(0) >= x.size(1) || x.size(0) == 1);
  const bool column_major = x.stride(0) == 1 && (x.stride(1) >= x.size(0) || x.size(1) == 1);
  if (!row_major && !column_major) return std::nullopt;
  Stored out{.transposed = !row_major, .stride = row_major ? x.stride(0) : x.stride(1)};
  out.stride = std::max(out.stride, row_major ? x.size(1) : x.size(0));
  if (out.stride % grain != 0) return std::nullopt;
  return out;
}

std::int64_t grain_of(CudaGemm::Type type) {
  return type == CudaGemm::kFloat ? 4 : type == CudaGemm::kHalf || type == CudaGemm::kBfloat16 ? 8 : 16;
}
bool is_fp8(CudaGemm::Type type) { return type == CudaGemm::kE4m3 || type == CudaGemm::kE5m2; }

bool types_fit(const CudaGemm& p) {
  if (is_fp8(p.a_type) || is_fp8(p.b_type)) {
    const bool both = is_fp8(p.a_type) && is_fp8(p.b_type);
    return both && !(p.a_type == CudaGemm::kE5m2 && p.b_type == CudaGemm::kE5m2) &&
           (p.d_type == CudaGemm::kFloat || p.d_type == CudaGemm::kBfloat16) && !p.transpose_a && p.transpose_b;
  }
  return p.a_type == p.b_type && !is_fp8(p.d_type) && (p.d_type == p.a_type || p.d_type == CudaGemm::kFloat);
}

/// cuBLASLt has one epilogue a call: nothing where these parts do not go together.
std::optional<CudaGemm::Epilogue> epilogue_of(const Gemm& call, const GemmPlan::Fused& fused) {
  const bool activation = fused.activation, bias_grad = fused.bias_grad;
  if (bias_grad) return fused.bias || activation ? std::nullopt : std::optional(CudaGemm::kBgradA);
  if (!activation) return fused.bias ? CudaGemm::kBias : CudaGemm::kPlain;
  if (call.epilogue.activation != Activation::kGeluTanh) return std::nullopt;
  if (call.epilogue.op == Epilogue::Op::kActivation) return CudaGemm::kGelu;
  return fused.bias ? std::nullopt : std::optional(CudaGemm::kDgelu);
}

}  // namespace

std::optional<CudaGemm> cublaslt_call(const Gemm& call, const GemmPlan::Fused& fused, const at::Tensor& bias_grad) {
  const at::Tensor a = op_a(call), b = op_b(call), &out = call.out;
  TRIREME_CHECK(out.defined() && a.dim() == 2 && b.dim() == 2 && out.dim() == 2 && a.size(0) == out.size(0) &&
                    b.size(1) == out.size(1) && a.size(1) == b.size(0),
                "a GEMM of {} and {} into {}", fmt::join(a.sizes(), " x "), fmt::join(b.sizes(), " x "),
                out.defined() ? fmt::format("{}", fmt::join(out.sizes(), " x ")) : "nothing");
  TRIREME_CHECK(!(fused.accumulate && fused.residual), "a GEMM adds to its output, or to a residual");
  if (call.a.scaling != Fp8Scaling::kTensor || call.b.scaling != Fp8Scaling::kTensor) return std::nullopt;
  const auto epilogue = epilogue_of(call, fused);
  const auto a_type = cublaslt_type(a), b_type = cublaslt_type(b), d_type = cublaslt_type(out);
  if (!epilogue || !a_type || !b_type || !d_type || out.numel() == 0 || a.size(1) == 0) return std::nullopt;
  const auto a_stored = stored(a, grain_of(*a_type)), b_stored = stored(b, grain_of(*b_type)),
             d_stored = stored(out, grain_of(*d_type));
  if (!a_stored || !b_stored || !d_stored || d_stored->transposed) return std::nullopt;
  CudaGemm p{.a_type = *a_type, .b_type = *b_type, .d_type = *d_type, .epilogue = *epilogue};
  p.m = out.size(0), p.n = out.size(1), p.k = a.size(1);
  p.a_stride = a_stored->stride, p.b_stride = b_stored->stride, p.d_stride = d_stored->stride;
  p.transpose_a = a_stored->transposed, p.transpose_b = b_stored->transposed;
  p.add = fused.accumulate || fused.residual, p.fast = call.fast_accumulation;
  p.a = a.const_data_ptr(), p.b = b.const_data_ptr(), p.d = out.mutable_data_ptr();
  if (!types_fit(p)) return std::nullopt;
  if (const at::Tensor& bias = fused.bias_grad ? bias_grad : call.epilogue.bias; fused.bias || fused.bias_grad) {
    const std::int64_t length = fused.bias_grad ? p.m : p.n;
    if (!bias.defined()) return std::nullopt;
    TRIREME_CHECK(bias.numel() == length, "a bias of {} elements for a GEMM of {} x {}", bias.numel(), p.m, p.n);
    if (bias.scalar_type() != out.scalar_type() || bias.stride(0) != 1) return std::nullopt;
    p.bias = bias.mutable_data_ptr();
  }
  if (fused.activation) {
    const at::Tensor& pre_activation = call.epilogue.pre_activation;
    TRIREME_CHECK(pre_activation.defined() && pre_activation.sizes() == out.sizes(),
                  "a pre-activation is as large as the result");
    const auto aux = stored(pre_activation, 8);
    if (pre_activation.scalar_type() != out.scalar_type() || !aux || aux->transposed) return std::nullopt;
    p.aux = pre_activation.mutable_data_ptr();
    p.aux_stride = aux->stride;
  }
  if (fused.residual) {
    const at::Tensor& residual = call.epilogue.residual;
    TRIREME_CHECK(residual.sizes() == out.sizes(), "a residual is as large as the result");
    const auto c = stored(residual, grain_of(*d_type));
    if (residual.scalar_type() != out.scalar_type() || !c || c->transposed) return std::nullopt;
    p.c = residual.const_data_ptr();
    p.c_stride = c->stride;
  }
  if (call.a.is_fp8()) p.a_scale = call.a.scales.const_data_ptr<float>();
  if (call.b.is_fp8()) p.b_scale = call.b.scales.const_data_ptr<float>();
  std::uintptr_t addresses = 256;
  for (const void* address : {p.a, p.b, p.c, static_cast<const void*>(p.d), static_cast<const void*>(p.bias),
                              static_cast<const void*>(p.aux)}) {
    addresses |= reinterpret_cast<std::uintptr_t>(address);
  }
  if (addresses % 16 != 0) return std::nullopt;
  p.alignment = addresses % 256 == 0 ? 256 : 16;
  return p;
}

std::string gemm_key(const CudaGemm& p) {
  constexpr std::array kEpilogues{"", " bias", " gelu", " dgelu", " bias-grad"};
  std::string key = fmt::format("{} {} -> {} {}x{}x{} {}{}{}", name_of(p.a_type), name_of(p.b_type), name_of(p.d_type),
                                p.m, p.n, p.k, p.transpose_a ? 't' : 'n', p.transpose_b ? 't' : 'n',
                                kEpilogues.at(static_cast<std::size_t>(p.epilogue)));
  if (p.epilogue == CudaGemm::kGelu && p.bias != nullptr) key += " bias";
  if (p.fast) key += " fast";
  if (p.c != nullptr) key += " residual";
  // Strides where rows have gaps, and addresses that are less than 256-byte aligned.
  const std::int64_t a_width = p.transpose_a ? p.m : p.k, b_width = p.transpose_b ? p.k : p.n;
  if (p.a_stride != a_width) key += fmt::format(" a/{}", p.a_stride);
  if (p.b_stride != b_width) key += fmt::format(" b/{}", p.b_stride);
  if (p.d_stride != p.n) key += fmt::format(" d/{}", p.d_stride);
  if (p.c != nullptr && p.c_stride != p.n) key += fmt::format(" residual/{}", p.c_stride);
  if (p.aux != nullptr && p.aux_stride != p.n) key += fmt::format(" aux/{}", p.aux_stride);
  if (p.alignment != 256) key += fmt::format(" at {}", p.alignment);
  return key;
}

}  // namespace trireme::kernels
