#include "trireme/kernels/gemm_execute.h"

#include <ATen/BlasBackend.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/_scaled_mm_v2.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include "trireme/base/error.h"
#include "trireme/kernels/fp8_cpu.h"
#include "trireme/kernels/invariant_gemm.h"
#include "trireme/kernels/sum_rows.h"

namespace trireme::kernels {

using Op = Epilogue::Op;

Gemm linear_part(const Gemm& call) {
  Gemm linear = call;
  linear.out_type = type_of(call);
  linear.epilogue = {.bias = call.epilogue.bias, .residual = call.epilogue.residual};
  // What an activation is taken of goes where it is saved; with accumulation it is in `out` first.
  if (call.epilogue.op == Op::kActivation && !call.accumulate) linear.out = call.epilogue.pre_activation;
  return linear;
}

bool aten_writes_out(const Gemm& call) {
  if (call.a.is_fp8()) return false;
  const at::ScalarType from = call.a.values.scalar_type(), to = type_of(call);
  return from == to || (call.a.values.is_cuda() && to == at::kFloat);  // a GPU's 16-bit GEMMs can come out in float
}

namespace {

std::int64_t scaling_recipe(Fp8Scaling scaling) {
  using at::blas::ScalingType;
  switch (scaling) {
    case Fp8Scaling::kTensor:
      return static_cast<std::int64_t>(ScalingType::TensorWise);
    case Fp8Scaling::kBlocks1x128:
      return static_cast<std::int64_t>(ScalingType::BlockWise1x128);
    case Fp8Scaling::kBlocks128x128:
      break;
  }
  return static_cast<std::int64_t>(ScalingType::BlockWise128x128);
}

at::Tensor aten_fp8(const Gemm& call, at::ScalarType type) {
  const GemmOperand &a = call.a, &b = call.b;
  if (!a.values.is_cuda()) return fp8_gemm_on_cpu(a, b).to(type);
  if (a.scaling == Fp8Scaling::kTensor) {
    return at::_scaled_mm(a.values, b.values.t(), a.scales, b.scales, std::nullopt, std::nullopt, type,
                          call.fast_accumulation);
  }
  const auto none = static_cast<std::int64_t>(at::blas::SwizzleType::NO_SWIZZLE);
  return at::_scaled_mm_v2(a.values, b.values.t(), {a.scales.t()}, scaling_recipe(a.scaling), none, {b.scales.t()},
                           scaling_recipe(b.scaling), none, std::nullopt, type, {}, call.fast_accumulation);
}

/// a b by itself, for where it cannot be written to `out` at once.
at::Tensor multiply_apart(const Gemm& call) {
  if (!call.a.is_fp8()) return at::mm(op_a(call), op_b(call));
  // With scales of blocks the sum over micro-batches begins in float, whatever it is kept in.
  const bool blocks = call.a.scaling != Fp8Scaling::kTensor;
  return gemm({.a = call.a,
               .b = call.b,
               .transpose_b = true,
               .out_type = blocks ? at::kFloat : type_of(call),
               .fast_accumulation = call.fast_accumulation})
      .out;
}

/// By ATen in float, rounded to the operands' type: what a CPU with instructions for that type gives.
at::Tensor run_widened(const Gemm& call, const GemmPlan::Fused& fused) {
  const at::ScalarType type = call.a.values.scalar_type();
  const at::Tensor a = op_a(call).to(at::kFloat), b = op_b(call).to(at::kFloat);
  const at::Tensor add = fused.accumulate ? call.out : fused.bias ? call.epilogue.bias : at::Tensor();
  const at::Tensor sum = (add.defined() ? at::addmm(add.to(at::kFloat), a, b) : at::mm(a, b)).to(type);
  at::Tensor out = call.out;
  if (!out.defined()) return sum.to(type_of(call));
  return call.accumulate && !fused.accumulate ? out.add_(sum) : out.copy_(sum);
}

/// By ATen: a b with what the plan fuses.
at::Tensor run_aten(const Gemm& call, const GemmPlan::Fused& fused) {
  const at::Tensor a = op_a(call), b = op_b(call);
  at::Tensor out = call.out;
  if (!out.defined()) {
    if (call.a.is_fp8()) return aten_fp8(call, type_of(call));
    if (a.scalar_type() == type_of(call)) return fused.bias ? at::addmm(call.epilogue.bias, a, b) : at::mm(a, b);
    out = at::empty({m_of(call), n_of(call)}, a.options().dtype(type_of(call)));
  }
  if (!aten_writes_out(call)) {
    const at::Tensor sum = multiply_apart(call);
    return call.accumulate ? out.add_(sum) : out.copy_(sum);
  }
  const bool same = a.scalar_type() == out.scalar_type();
  if (call.accumulate) {
    same ? out.addmm_(a, b) : at::addmm_out(out, out, a, b, out.scalar_type());
  } else if (fused.bias) {
    at::addmm_out(out, call.epilogue.bias, a, b);
  } else {
    same ? at::mm_out(out, a, b) : at::mm_out(out, a, b, out.scalar_type());
  }
  return out;
}

/// Row by row, in float, with the bias.
at::Tensor run_invariant(const Gemm& call) {
  at::Tensor out = call.out.defined() ? call.out : at::empty({m_of(call), n_of(call)}, call.a.values.options());
  const at::Tensor& x = call.a.values;
  if (call.b.is_quantised()) {
    invariant_gemm(out, x, call.b.quantised, call.epilogue.bias);
  } else {
    invariant_gemm(out, x, call.b.values, call.epilogue.bias);
  }
  return out;
}

at::Tensor run_linear(const Gemm& call, const GemmPlan& plan) {
  if (plan.backend == GemmPlan::Backend::kCublasLt) {
    run_cublaslt(*cublaslt_call(call, plan.fused), call.out);
  }
  at::Tensor out = plan.backend == GemmPlan::Backend::kCublasLt    ? call.out
                   : plan.backend == GemmPlan::Backend::kInvariant ? run_invariant(call)
                   : plan.widens                                   ? run_widened(call, plan.fused)
                                                                   : run_aten(call, plan.fused);
  const Epilogue& epilogue = call.epilogue;
  if (epilogue.bias.defined() && !plan.fused.bias) out.add_(epilogue.bias);
  if (epilogue.residual.defined() && !plan.fused.residual) out.add_(epilogue.residual);
  return out;
}

void add_bias_grad_a(const Gemm& call) {
  at::Tensor total = call.epilogue.bias_grad_a, rows = call.transpose_a ? call.a.values : call.a.values.t();
  if (rows.stride(1) != 1) rows = rows.contiguous();
  add_row_sum(total, rows, /*overwrite=*/!call.epilogue.accumulate_bias_grad);
}

/// Activation and bias gradients after the linear part, each in a pass of its own.
GemmResult run_separate(const Gemm& call, const GemmPlan& plan) {
  const Epilogue& epilogue = call.epilogue;
  const at::Tensor sum = run_linear(linear_part(call), plan);
  GemmResult result{.out = sum, .pre_activation = {}};
  at::Tensor recompute = epilogue.recompute, bias_grad = epilogue.bias_grad_out;
  const bool overwrite = !epilogue.accumulate_bias_grad;
  if (epilogue.op == Op::kActivation) {
    result.pre_activation = sum;
    if (call.accumulate) {
      result.pre_activation = epilogue.pre_activation.defined() ? epilogue.pre_activation : at::empty_like(sum);
      result.pre_activation.copy_(sum);
    }
    result.out = call.out.defined() ? call.out : at::empty_like(sum);
    activation_forward(result.out, result.pre_activation, at::Tensor(), epilogue.activation);
  } else if (epilogue.op == Op::kActivationBackward) {
    activation_backward(result.out, bias_grad, result.out, epilogue.pre_activation, at::Tensor(), epilogue.activation,
                        recompute.defined() ? &recompute : nullptr, overwrite);
  }
  if (bias_grad.defined() && epilogue.op != Op::kActivationBackward) add_row_sum(bias_grad, result.out, overwrite);
  if (epilogue.bias_grad_a.defined()) add_bias_grad_a(call);
  return result;
}

/// The GEMM overwrites the sum that it makes, in the result's type: where the gradient is neither, it goes through a
/// tensor of its own.
void run_with_bias_grad(const Gemm& call, const GemmPlan::Fused& fused) {
  at::Tensor total = call.epilogue.bias_grad_a;
  const bool add = call.epilogue.accumulate_bias_grad;
  const bool direct = !add && total.scalar_type() == call.out.scalar_type() &&
                      reinterpret_cast<std::uintptr_t>(total.const_data_ptr()) % 16 == 0;
  const at::Tensor sum = direct ? total.view({-1}) : at::empty({m_of(call)}, call.out.options());
  const auto lt = cublaslt_call(call, fused, sum);
  TRIREME_CHECK(lt, "a bias gradient lies where the GEMM cannot write it");
  run_cublaslt(*lt, call.out);
  if (direct) return;
  const at::Tensor made = sum.reshape(total.sizes());
  add ? total.add_(made) : total.copy_(made);
}

}  // namespace

GemmResult execute(const Gemm& call, const GemmPlan& plan) {
  if (plan.fused.bias_grad) {
    run_with_bias_grad(call, plan.fused);
    return {.out = call.out, .pre_activation = {}};
  }
  if (!plan.fused.activation) return run_separate(call, plan);
  const Epilogue& epilogue = call.epilogue;
  run_cublaslt(*cublaslt_call(call, plan.fused), call.out);
  if (epilogue.op == Op::kActivation) return {.out = call.out, .pre_activation = epilogue.pre_activation};
  at::Tensor recompute = epilogue.recompute, bias_grad = epilogue.bias_grad_out;
  if (recompute.defined()) activation_forward(recompute, epilogue.pre_activation, at::Tensor(), epilogue.activation);
  if (bias_grad.defined()) add_row_sum(bias_grad, call.out, /*overwrite=*/!epilogue.accumulate_bias_grad);
  return {.out = call.out, .pre_activation = {}};
}

}  // namespace trireme::kernels
