#include "trireme/kernels/gemm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/instruction_set.h"
#include "trireme/kernels/autotune.h"
#include "trireme/kernels/gemm_cublaslt.h"
#include "trireme/kernels/gemm_execute.h"

namespace trireme::kernels {
namespace {

using Op = Epilogue::Op;

/// cuBLASLt's GELU is within a few roundings of 16 bits, not of float.
bool is_16_bit(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

/// What invariant_gemm.h does besides x W^T + b, which is nothing.
void check_rows_alone(const Gemm& call) {
  TRIREME_CHECK(!call.transpose_a && call.transpose_b && !call.accumulate && !call.a.is_fp8() &&
                    type_of(call) == call.a.values.scalar_type() && !call.epilogue.bias_grad_a.defined(),
                "a batch-invariant GEMM is x W^T + b of one type");
}

void check_quantised(const Gemm& call) {
  TRIREME_CHECK(call.a.values.is_cpu() && call.a.values.dim() == 2 && call.a.values.size(1) == call.b.quantised.columns,
                "a GEMM of {} with a quantised weight of {} x {}", fmt::join(call.a.values.sizes(), " x "),
                call.b.quantised.rows, call.b.quantised.columns);
  check_rows_alone(call);
}

bool rows_alone(const Gemm& call) { return call.b.is_quantised() || (call.batch_invariant && call.a.values.is_cpu()); }

void check(const Gemm& call) {
  const GemmOperand &a = call.a, &b = call.b;
  if (b.is_quantised()) return check_quantised(call);
  const bool fits = a.values.dim() == 2 && b.values.dim() == 2 &&
                    b.values.size(call.transpose_b ? 1 : 0) == a.values.size(call.transpose_a ? 0 : 1);
  TRIREME_CHECK(fits, "a GEMM of {} and {}{}{}", fmt::join(a.values.sizes(), " x "), fmt::join(b.values.sizes(), " x "),
                call.transpose_a ? ", a transposed" : "", call.transpose_b ? ", b transposed" : "");
  TRIREME_CHECK(call.out.defined() || !call.accumulate, "a GEMM that accumulates needs what it adds to");
  const Epilogue& epilogue = call.epilogue;
  const std::int64_t m = m_of(call), n = n_of(call);
  for (const at::Tensor* each : {&call.out, &epilogue.residual, &epilogue.pre_activation, &epilogue.recompute}) {
    TRIREME_CHECK(!each->defined() || (each->dim() == 2 && each->size(0) == m && each->size(1) == n),
                  "a GEMM of {} x {} with a tensor of {}", m, n, fmt::join(each->sizes(), " x "));
  }
  for (const auto& [vector, length] :
       {std::pair{&epilogue.bias, n}, std::pair{&epilogue.bias_grad_out, n}, std::pair{&epilogue.bias_grad_a, m}}) {
    TRIREME_CHECK(!vector->defined() || vector->numel() == length, "a bias of {} elements for a GEMM of {} x {}",
                  vector->numel(), m, n);
  }
  TRIREME_CHECK(epilogue.op != Op::kActivationBackward || epilogue.pre_activation.defined(),
                "the derivative of an activation needs its pre-activation");
  TRIREME_CHECK(!epilogue.recompute.defined() || epilogue.op == Op::kActivationBackward,
                "an activation is recomputed in backward only");
  TRIREME_CHECK(a.is_fp8() == b.is_fp8(), "both operands of a GEMM are FP8, or neither");
  if (rows_alone(call) && !a.is_fp8()) check_rows_alone(call);
  if (!a.is_fp8()) return;
  TRIREME_CHECK(!call.transpose_a && call.transpose_b, "FP8 operands are [m, k] and [n, k]");
  TRIREME_CHECK((a.scaling == Fp8Scaling::kTensor) == (b.scaling == Fp8Scaling::kTensor),
                "both operands of a GEMM have scales of blocks, or neither");
  TRIREME_CHECK(!epilogue.bias_grad_a.defined(), "a bias's gradient is not taken of FP8 operands");
}

/// Whether the CPU's library has fast loops for GEMMs of this type: oneDNN's conditions.
bool cpu_multiplies(at::ScalarType type) {
#if defined(__x86_64__)
  if (type == at::kBFloat16) return instruction_set() >= InstructionSet::kV4;
  if (type == at::kHalf) return instruction_set() >= InstructionSet::kV4 && __builtin_cpu_supports("avx512fp16");
#endif
  return true;
}

/// The call for cuBLASLt, where it may be asked at all.
std::optional<CudaGemm> on_cublaslt(const Gemm& call, const GemmPlan::Fused& fused, const at::Tensor& bias_grad = {}) {
  if (!call.a.values.is_cuda() || !gemm_autotune()) return std::nullopt;
  return cublaslt_call(call, fused, bias_grad);
}

/// Of linear_part(). Where the library has an algorithm everything is fused, but for a second thing to add.
GemmPlan plan_linear(const Gemm& call) {
  const Epilogue& epilogue = call.epilogue;
  if (rows_alone(call)) {
    return {.backend = GemmPlan::Backend::kInvariant, .fused = {.bias = epilogue.bias.defined()}};
  }
  GemmPlan plan{.backend = GemmPlan::Backend::kCublasLt,
                .fused = {.accumulate = call.accumulate,
                          .bias = epilogue.bias.defined(),
                          .residual = epilogue.residual.defined() && !call.accumulate}};
  const auto lt = on_cublaslt(call, plan.fused);
  if (lt && has_algorithm(*lt, call.out)) return plan;
  const at::Tensor& a = call.a.values;
  const bool widens = a.is_cpu() && !call.a.is_fp8() && !cpu_multiplies(a.scalar_type());
  const bool same = a.scalar_type() == type_of(call);
  return {.fused = {.accumulate = call.accumulate && aten_writes_out(call),
                    .bias = epilogue.bias.defined() && !call.accumulate && !call.a.is_fp8() && same},
          .widens = widens};
}

/// Activation or bias gradient inside the GEMM, where cuBLASLt may have that: nothing where it has not.
std::optional<GemmPlan> fused_variant(const Gemm& call) {
  const Epilogue& epilogue = call.epilogue;
  const bool adds = call.accumulate || epilogue.residual.defined();
  GemmPlan plan{.backend = GemmPlan::Backend::kCublasLt};
  if (epilogue.op != Op::kNone) {
    const bool forward = epilogue.op == Op::kActivation;
    if (epilogue.activation != Activation::kGeluTanh || !is_16_bit(call.a.values) || adds ||
        epilogue.bias_grad_a.defined() || (forward ? epilogue.bias_grad_out : epilogue.bias).defined()) {
      return std::nullopt;
    }
    plan.fused = {.bias = epilogue.bias.defined(), .activation = true};
    if (!on_cublaslt(call, plan.fused)) return std::nullopt;
    return plan;
  }
  if (!epilogue.bias_grad_a.defined() || epilogue.bias_grad_out.defined() || epilogue.bias.defined() ||
      epilogue.residual.defined() || !call.out.defined() || !call.out.is_contiguous() ||
      (!is_16_bit(call.out) && call.out.scalar_type() != at::kFloat)) {
    return std::nullopt;
  }
  plan.fused = {.accumulate = call.accumulate, .bias_grad = true};
  // Any place will do to ask.
  if (!on_cublaslt(call, plan.fused, call.out.view({-1}).narrow(0, 0, m_of(call)))) return std::nullopt;
  return plan;
}

/// Everything that the choice between fused and separate depends on.
std::string variant_key(const Gemm& call) {
  const Epilogue& epilogue = call.epilogue;
  const char* what = epilogue.op == Op::kActivation           ? "gelu"
                     : epilogue.op == Op::kActivationBackward ? "dgelu"
                                                              : "bias-grad";
  return fmt::format("{} {} {}x{}x{}{}{}{}", what, c10::toString(type_of(call)), m_of(call), n_of(call), k_of(call),
                     epilogue.bias.defined() ? " bias" : "", epilogue.recompute.defined() ? " recompute" : "",
                     epilogue.bias_grad_out.defined() ? " bias-grad" : "");
}

/// The call as it is timed: what counts afterwards (gradients that are added to) is replaced by memory of its own.
Gemm trial_of(const Gemm& call) {
  Gemm trial = call;
  Epilogue& epilogue = trial.epilogue;
  if (epilogue.bias_grad_a.defined()) {
    trial.out = at::empty_like(call.out);
    trial.accumulate = false;
    epilogue.bias_grad_a = at::empty({m_of(call)}, call.out.options().dtype(at::kFloat));
  }
  if (epilogue.bias_grad_out.defined()) epilogue.bias_grad_out = at::empty_like(epilogue.bias_grad_out);
  epilogue.accumulate_bias_grad = false;
  return trial;
}

/// Of a call whose outputs are there already, where cuBLASLt is to write them.
GemmPlan plan_prepared(const Gemm& call) {
  if (const auto fused = fused_variant(call)) {
    std::optional<Gemm> trial;  // made where it is needed: when the variants are timed
    const auto get = [&]() -> const Gemm& {
      if (!trial) trial = trial_of(call);
      return *trial;
    };
    const auto outputs = [&] {
      std::vector<at::Tensor> made{get().out};
      const Epilogue& epilogue = get().epilogue;
      if (epilogue.op == Op::kActivation) made.push_back(epilogue.pre_activation);
      for (const at::Tensor& sum : {epilogue.bias_grad_out, epilogue.bias_grad_a}) {
        if (sum.defined()) made.push_back(sum);
      }
      return made;
    };
    const std::string pick = fastest_variant(variant_key(call),
                                             {{"separate", [&] { execute(get(), plan_linear(linear_part(get()))); }},
                                              {"fused",
                                               [&] {
                                                 GemmPlan plan = *fused;
                                                 plan.fused.accumulate = get().accumulate;
                                                 execute(get(), plan);
                                               }}},
                                             outputs);
    if (pick == "fused") return *fused;
  }
  return plan_linear(linear_part(call));
}

/// Memory for what cuBLASLt writes, which it is told before it plans.
Gemm prepare(const Gemm& call) {
  check(call);
  Gemm ready = call;
  if (!call.a.values.is_cuda() || !gemm_autotune()) return ready;
  if (!ready.out.defined())
    ready.out = at::empty({m_of(call), n_of(call)}, call.a.values.options().dtype(type_of(call)));
  if (ready.epilogue.op == Op::kActivation && !ready.epilogue.pre_activation.defined()) {
    ready.epilogue.pre_activation = at::empty_like(ready.out);
  }
  return ready;
}

const char* type_name(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "fp64";
    case at::kFloat:
      return "fp32";
    case at::kHalf:
      return "fp16";
    case at::kBFloat16:
      return "bf16";
    case at::kFloat8_e4m3fn:
      return "e4m3";
    case at::kFloat8_e5m2:
      return "e5m2";
    default:
      return c10::toString(type);
  }
}

const char* activation_name(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return "relu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluTanh:
      return "gelu-tanh";
    case Activation::kSilu:
      break;
  }
  return "silu";
}

}  // namespace

GemmResult gemm(const Gemm& call) {
  const Gemm ready = prepare(call);
  const GemmPlan plan = plan_prepared(ready);
  // ATen makes its results itself: what was made to ask cuBLASLt with is let go.
  return execute(plan.backend == GemmPlan::Backend::kCublasLt ? ready : call, plan);
}

GemmPlan plan_gemm(const Gemm& call) { return plan_prepared(prepare(call)); }

std::string to_text(const Gemm& call, const GemmPlan& plan) {
  const Epilogue& epilogue = call.epilogue;
  std::string fused, separate;
  const auto part = [&](bool wanted, bool inside, std::string_view name) {
    if (!wanted) return;
    if (inside) {
      fused += fmt::format(" + {}", name);
    } else {
      separate += fmt::format("{}{}", separate.empty() ? ", then " : ", ", name);
    }
  };
  part(call.accumulate, plan.fused.accumulate, "accumulate");
  part(epilogue.bias.defined(), plan.fused.bias, "bias");
  part(epilogue.residual.defined(), plan.fused.residual, "residual");
  part(epilogue.op == Op::kActivation, plan.fused.activation, activation_name(epilogue.activation));
  part(epilogue.op == Op::kActivationBackward, plan.fused.activation,
       fmt::format("d-{}", activation_name(epilogue.activation)));
  part(epilogue.recompute.defined(), false, activation_name(epilogue.activation));
  part(epilogue.bias_grad_out.defined() || epilogue.bias_grad_a.defined(), plan.fused.bias_grad, "bias-grad");
  const char* backend = plan.backend == GemmPlan::Backend::kCublasLt    ? "cuBLASLt"
                        : plan.backend == GemmPlan::Backend::kInvariant ? "invariant"
                        : plan.widens                                   ? "ATen in fp32,"
                                                                        : "ATen";
  const char* b_type = !call.b.is_quantised()                           ? type_name(call.b.values.scalar_type())
                       : call.b.quantised.format == WeightFormat::kInt8 ? "int8"
                                                                        : "int4";
  return fmt::format("{} {} {} -> {} {}x{}x{} {}{}{}{}", backend, type_name(call.a.values.scalar_type()), b_type,
                     type_name(type_of(call)), m_of(call), n_of(call), k_of(call), call.transpose_a ? 't' : 'n',
                     call.transpose_b ? 't' : 'n', fused, separate);
}

}  // namespace trireme::kernels
