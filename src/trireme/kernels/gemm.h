// kernels/gemm.h -- a GEMM call as a value: operands, transposes, epilogue, accumulation, precision.
//
// A caller states all that it wants of one call and runs it. The planner decides which of it the GEMM does in its own
// pass and which takes passes of its own: on the CPU by the tensor library, on a GPU by cuBLASLt, whose algorithms are
// timed when a shape is first met (gemm_cublaslt.h), as is whether GELU or a bias's gradient is faster inside or apart
// (autotune.h). What cuBLASLt does not take (other types, odd strides) goes to the tensor library. Timing waits for the
// GPU, so a step must have run once before it is captured in a CUDA graph.
//
// A CPU without AVX-512 has no bf16 GEMM to speak of (ATen's loops take fifty times as long as those in float): there
// 16-bit operands are converted to float, multiplied, and the product is rounded. fp16 needs AVX512-FP16.
//
// Grouped GEMMs (experts) are in grouped_gemm.h. Weights in int8 or int4 are another format of GemmOperand, for
// inference on the CPU: quantised_weight.h.
// Depends on: base, fp8.h, quantised_weight.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "trireme/kernels/activation.h"
#include "trireme/kernels/fp8.h"
#include "trireme/kernels/quantised_weight.h"

namespace trireme::kernels {

/// A matrix of floats with any strides; one of FP8 numbers with their scales; or, as b, one of int8 or int4.
struct GemmOperand {
  GemmOperand() = default;
  GemmOperand(at::Tensor of) : values(std::move(of)) {}  // NOLINT(google-explicit-constructor)
  GemmOperand(const Fp8Matrix& of)                       // NOLINT(google-explicit-constructor)
      : values(of.values), scales(of.scales), scaling(of.scaling) {}
  GemmOperand(const QuantisedWeight& of) : quantised(of) {}  // NOLINT(google-explicit-constructor)

  at::Tensor values;
  at::Tensor scales = {};  ///< FP8 only
  Fp8Scaling scaling = Fp8Scaling::kTensor;
  QuantisedWeight quantised = {};  ///< in place of values
  bool is_fp8() const { return scales.defined(); }
  bool is_quantised() const { return quantised.defined(); }
};

/// What happens to the sum a b before it is out. Tensors that are undefined are not wanted.
struct Epilogue {
  enum class Op : std::uint8_t {
    kNone,
    kActivation,          ///< out = f(sum)
    kActivationBackward,  ///< out = sum * f'(pre_activation)
  };
  at::Tensor bias = {};      ///< [n], of the result's type, added to every row
  at::Tensor residual = {};  ///< [m, n], of the result's type, added; only read
  Op op = Op::kNone;
  Activation activation = Activation::kGeluTanh;  ///< f
  /// [m, n]. kActivation: becomes what f was taken of; made where undefined. kActivationBackward: read.
  at::Tensor pre_activation = {};
  at::Tensor recompute = {};  ///< kActivationBackward: becomes f(pre_activation), for a backward that did not save it
  at::Tensor bias_grad_out = {};  ///< [n] float (double): the sum of out's rows, the gradient of the bias before f
  at::Tensor bias_grad_a = {};    ///< [m] float (double): the sum of a over k, a bias's gradient beside its weight's
  bool accumulate_bias_grad = false;  ///< those two are added to
};

/// out [m, n] = epilogue(a [m, k] b [k, n] (+ out) + bias + residual). Sums are in float (double).
struct Gemm {
  GemmOperand a = {}, b = {};
  bool transpose_a = false, transpose_b = false;  ///< a is stored as [k, m], b as [n, k]; FP8: only b, and always
  at::Tensor out = {};                            ///< undefined: made. Must lie over none of the inputs
  std::optional<at::ScalarType> out_type = {};    ///< of an `out` that is made; unset: a's type
  bool accumulate = false;                        ///< what is in `out` counts
  Epilogue epilogue = {};
  bool fast_accumulation = false;  ///< FP8: sums as the tensor cores make them, of about 14 bits
  /// Each row of the result has the bits that it has alone (invariant_gemm.h). CPU, b transposed, one type, no
  /// accumulation; on a GPU it changes nothing.
  bool batch_invariant = false;
};

struct GemmResult {
  at::Tensor out;
  at::Tensor pre_activation;  ///< of Epilogue::Op::kActivation
};
GemmResult gemm(const Gemm& call);

/// How a call is carried out.
struct GemmPlan {
  enum class Backend : std::uint8_t { kAten, kCublasLt, kInvariant };
  Backend backend = Backend::kAten;
  /// What the GEMM's own pass does besides a b; the rest is done in passes after it.
  struct Fused {
    bool accumulate = false, bias = false, residual = false, activation = false, bias_grad = false;
    bool operator==(const Fused&) const = default;
  };
  Fused fused = {};
  /// Operands are converted to float first: on a CPU without instructions for their 16-bit type.
  bool widens = false;
  bool operator==(const GemmPlan&) const = default;
};
/// On a GPU this times what has not been met before, and then writes what the call would write.
GemmPlan plan_gemm(const Gemm& call);
/// For logs: "cuBLASLt bf16 bf16 -> bf16 64x48x32 nt + bias + residual, then gelu-tanh".
std::string to_text(const Gemm& call, const GemmPlan& plan);

}  // namespace trireme::kernels
