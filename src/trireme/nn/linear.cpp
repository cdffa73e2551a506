#include "trireme/nn/linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "trireme/base/error.h"
#include "trireme/kernels/skinny_gemm.h"
#include "trireme/nn/exchange.h"
#include "trireme/nn/flops.h"
#include "trireme/nn/kv_cache.h"
#include "trireme/nn/layer.h"

namespace trireme::nn {

using Op = kernels::Epilogue::Op;

std::vector<std::int64_t> with_width(const at::Tensor& x, std::int64_t width) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = width;
  return shape;
}

GateUp split_gate_up(const at::Tensor& rows) {
  const std::int64_t half = rows.size(1) / 2;
  return {rows.narrow(1, 0, half), rows.narrow(1, half, half)};
}

at::Tensor activated(const LinearInput& input) {
  if (input.x.defined()) return input.x;
  const at::Tensor& from = input.pre_activation;
  if (!input.gated) {
    at::Tensor x = at::empty_like(from);
    kernels::activation_forward(x, from, at::Tensor(), input.activation);
    return x;
  }
  const auto [gate, up] = split_gate_up(as_rows(from));
  at::Tensor x = at::empty({gate.size(0), gate.size(1)}, from.options());
  kernels::gated_forward(x, gate, up, input.activation);
  return x.view(with_width(from, gate.size(1)));
}

at::Tensor activation_grad(at::Tensor dx, const LinearInput& input, at::Tensor recompute, at::Tensor& row_sum) {
  if (!input.gated) {
    kernels::activation_backward(dx, row_sum, dx, input.pre_activation, at::Tensor(), input.activation,
                                 recompute.defined() ? &recompute : nullptr, /*overwrite=*/true);
    return dx;
  }
  at::Tensor grad = at::empty_like(input.pre_activation);
  const auto [gate, up] = split_gate_up(as_rows(input.pre_activation));
  auto [dgate, dup] = split_gate_up(as_rows(grad));
  at::Tensor x = recompute.defined() ? as_rows(recompute) : recompute;
  kernels::gated_backward(dgate, dup, x, as_rows(dx), gate, up, input.activation);
  return grad;
}

ResidualSum residual_sum(const at::Tensor& residual, LinearOutput&& output) {
  if (output.residual_added) return {.residual = std::move(output.y)};
  return {.residual = residual, .delta = std::move(output.y)};
}

Linear::Linear(Param& weight, Param* bias, LinearSplit split, const ParallelContext& parallel)
    : weight_(weight),
      bias_(bias),
      split_(parallel.tensor_ranks() > 1 ? split : LinearSplit::kNone),
      parallel_(&parallel),
      quantised_(std::make_shared<Fp8WeightCache>()) {
  ++weight_.uses;
  if (bias_) ++bias_->uses;
}

bool Linear::quantises_gated_input(const LinearInput& input) const {
  return !input.x.defined() && input.gated && split_ == LinearSplit::kNone && quantises_gated(weight_);
}

const kernels::Fp8Pair& Linear::quantised_weight(Context& context, bool forward) const {
  return quantised_->get(
      weight_, context.value(weight_),
      {.current = context.weights == nullptr && context.training, .training = context.training, .forward = forward});
}

namespace {

/// An inference step's x W^T (+ bias, + residual), where the weight is in fewer bits or the rows are so few that
/// reading it is all the work; undefined: neither.
at::Tensor inference_product(const at::Tensor& rows, const Param& weight, const kernels::Epilogue& epilogue,
                             Context& context) {
  const kernels::QuantisedWeight* quantised = quantised_of(context, weight);
  if (quantised == nullptr && (rows.is_cpu() || in_fp8(weight, rows.size(0)))) return {};
  kernels::SkinnyGemm few{.x = rows, .bias = epilogue.bias, .residual = epilogue.residual};
  few.quantised = quantised;
  if (quantised == nullptr) few.weight = context.value(weight);
  if (kernels::fits_stream_gemm(few)) return kernels::stream_gemm(few);
  if (kernels::fits_skinny_gemm(few)) return kernels::skinny_gemm(few);
  if (quantised == nullptr) return {};
  if (kernels::runs_quantised_gemm(few)) return kernels::quantised_gemm(few);
  kernels::Gemm call{.a = rows, .transpose_b = true};
  call.epilogue = {.bias = epilogue.bias, .residual = epilogue.residual};
  call.batch_invariant = batch_invariant(context);
  call.b = rows.is_cpu() && quantised->format != kernels::WeightFormat::kE4m3
               ? kernels::GemmOperand(*quantised)
               : kernels::GemmOperand(kernels::dequantise_weight(*quantised).to(rows.scalar_type()));
  return kernels::gemm(call).out;
}

}  // namespace

kernels::GemmResult Linear::multiply(const LinearInput& input, const kernels::Epilogue& epilogue,
                                     Context& context) const {
  if (context.kv_batch != nullptr && input.x.defined()) {
    const at::Tensor rows = as_rows(input.x);
    at::Tensor out = inference_product(rows, weight_, epilogue, context);
    if (out.defined()) {
      context.flops += gemm_flops(rows.size(0), rows.size(1), out.size(1));
      out = out.view(with_width(input.x, out.size(1)));
      if (epilogue.op == Op::kNone) return {.out = out, .pre_activation = {}};
      return {.out = activated({.pre_activation = out, .activation = epilogue.activation}), .pre_activation = out};
    }
  }
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor& entering = input.x.defined() ? input.x : input.pre_activation;
  const at::Tensor rows = as_rows(entering);
  context.flops += gemm_flops(rows.size(0), weight.size(1), weight.size(0));
  kernels::Gemm call{.a = rows, .b = weight, .transpose_b = true, .epilogue = epilogue};
  call.batch_invariant = batch_invariant(context);
  if (in_fp8(weight_, rows.size(0))) {
    const Fp8Quantise how{.role = Fp8Role::kActivation, .rows = true, .note = context.training};
    if (input.x.defined()) {
      call.a = quantise(weight_, rows, how).rows;
    } else {
      const auto [gate, up] = split_gate_up(rows);
      call.a = quantise_gated(weight_, gate, up, input.activation, how).rows;
    }
    call.b = quantised_weight(context, /*forward=*/true).rows;
    call.out_type = rows.scalar_type();
    // Sums of small blocks are added up in float, as DeepSeek-V3 does.
    call.fast_accumulation = rows.scalar_type() != at::kFloat && weight_.gemm != spec::GemmPrecision::kFp8Blocks;
  }
  kernels::GemmResult result = kernels::gemm(call);
  const auto shape = with_width(entering, weight.size(0));
  result.out = result.out.view(shape);
  if (result.pre_activation.defined()) result.pre_activation = result.pre_activation.view(shape);
  return result;
}

at::Tensor Linear::multiply(const at::Tensor& x, bool with_bias, Context& context) const {
  return multiply(LinearInput{.x = x}, {.bias = with_bias && bias_ ? context.value(*bias_) : at::Tensor()}, context)
      .out;
}

at::Tensor Linear::exchange_forward(const at::Tensor& x, Context& context, at::Tensor& saved) const {
  if (split_ == LinearSplit::kColumn) {
    auto [whole, y] = all_gather_gemm(x, *parallel_->tensor, parallel_->overlap,
                                      [&](const at::Tensor& part) { return multiply(part, true, context); });
    if (parallel_->sp_save_gathered) saved = std::move(whole);
    return y;
  }
  at::Tensor y;
  if (parallel_->splits_sequence()) {
    y = gemm_reduce_scatter(x, *parallel_->tensor, parallel_->overlap,
                            [&](const at::Tensor& part) { return multiply(part, false, context); });
  } else {
    y = multiply(x, false, context);
    sum_over(y, *parallel_->tensor);
  }
  if (bias_) y.add_(context.value(*bias_));
  return y;
}

LinearOutput Linear::forward(const LinearInput& input, const LinearEpilogue& epilogue, Context& context) const {
  TRIREME_CHECK(!epilogue.activation || !epilogue.residual.defined(),
                "the output of {} goes through an activation or is added to a residual", weight_.name);
  LinearInput ready = input;
  if (!quantises_gated_input(input)) ready.x = activated(input);
  LinearOutput out{.saved_input = ready.x};
  if (split_ == LinearSplit::kRow || (split_ == LinearSplit::kColumn && parallel_->splits_sequence())) {
    out.y = exchange_forward(ready.x, context, out.saved_input);
    if (epilogue.activation) {
      out.pre_activation = out.y;
      out.y = activated({.pre_activation = out.pre_activation, .activation = *epilogue.activation});
    }
    return out;
  }
  kernels::Epilogue of_gemm{.bias = bias_ ? context.value(*bias_) : at::Tensor()};
  if (epilogue.activation) {
    of_gemm.op = Op::kActivation;
    of_gemm.activation = *epilogue.activation;
  }
  // On a GPU the GEMM adds the residual. On the CPU, and where a rank has a part of the sum, that is left to the norm
  // which reads it next; so it is with scales of blocks, whose GEMMs have no epilogue.
  out.residual_added = epilogue.residual.defined() && epilogue.residual.is_cuda() && split_ == LinearSplit::kNone &&
                       weight_.gemm != spec::GemmPrecision::kFp8Blocks;
  if (out.residual_added) of_gemm.residual = as_rows(epilogue.residual);
  kernels::GemmResult made = multiply(ready, of_gemm, context);
  out.y = std::move(made.out);
  out.pre_activation = std::move(made.pre_activation);
  return out;
}

at::Tensor Linear::forward(at::Tensor x, Context& context, Tape* tape) {
  LinearOutput out = forward({.x = std::move(x)}, {}, context);
  if (tape) tape->push({std::move(out.saved_input)});
  return std::move(out.y);
}

}  // namespace trireme::nn
