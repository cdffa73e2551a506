#include "trireme/nn/moe/experts.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/dropout.h"
#include "trireme/kernels/expert_ops.h"
#include "trireme/kernels/grouped_gemm.h"
#include "trireme/nn/flops.h"
#include "trireme/nn/linear.h"
#include "trireme/nn/moe/fp8_experts.h"
#include "trireme/nn/moe/row_ops.h"

namespace trireme::nn::moe {

Experts::Experts(ExpertsShape shape, Param& in, Param& out) : shape_(std::move(shape)), in_(in), out_(out) {
  ++in_.uses;
  ++out_.uses;
}

std::int64_t Experts::local_experts() const { return local_shape(out_.placement)[0]; }

CopiedWeights Experts::with_copies(const ExpertCopies& copies, Context& context) const {
  if (!copies.any()) return {.copies = copies, .in = own_in(context), .out = context.value(out_)};
  return {.copies = copies, .in = copies.with_copies(own_in(context)), .out = copies.with_copies(context.value(out_))};
}

at::Tensor Experts::own_in(Context& context) const {
  const at::Tensor& weight = context.value(in_);
  const std::int64_t experts = local_experts();
  // Slices of fused projections stand one below the other, two an expert.
  return weight.size(0) == experts ? weight : weight.view({experts, -1, weight.size(2)});
}

at::Tensor Experts::in_weight(const ExpertRows& rows, Context& context) const {
  return rows.copied != nullptr ? rows.copied->in : own_in(context);
}
at::Tensor Experts::out_weight(const ExpertRows& rows, Context& context) const {
  return rows.copied != nullptr ? rows.copied->out : context.value(out_);
}

at::Tensor Experts::multiply(const Param& weight, const at::Tensor& x, const at::Tensor& matrices,
                             const ExpertRows& rows, Context& context) const {
  context.flops += gemm_flops(x.size(0), matrices.size(2), matrices.size(1));
  if (weight.gemm != spec::GemmPrecision::kSame)
    return fp8_grouped_gemm(
        {.weight = weight, .rows = x, .matrices = matrices, .offsets = rows.offsets, .training = context.training});
  return kernels::grouped_gemm(
      {.a = x, .b = matrices, .offsets = rows.offsets, .transpose_b = true, .ends = rows.ends});
}

at::Tensor Experts::grad_input(const Param& weight, const at::Tensor& dy, const at::Tensor& matrices,
                               const ExpertRows& rows, Context& context) const {
  context.flops += gemm_flops(dy.size(0), matrices.size(1), matrices.size(2));
  if (weight.gemm != spec::GemmPrecision::kSame)
    return fp8_grouped_gemm(
        {.weight = weight, .rows = dy, .matrices = matrices, .offsets = rows.offsets, .backward = true});
  return kernels::grouped_gemm({.a = dy, .b = matrices, .offsets = rows.offsets});
}

at::Tensor Experts::pre_activation(const ExpertRows& rows, Context& context) const {
  return multiply(in_, rows.x, in_weight(rows, context), rows, context);
}

at::Tensor Experts::activations(const at::Tensor& pre_activation) const {
  return activated({.pre_activation = pre_activation, .activation = shape_.activation, .gated = shape_.gated});
}

void Experts::drop(at::Tensor& inner, const ExpertRows& rows, const Context& context) const {
  if (!context.training || shape_.dropout == 0) return;
  for (std::size_t e = 0; e + 1 < rows.offsets.size(); ++e) {
    const std::int64_t first = rows.offsets[e], count = rows.offsets[e + 1] - first;
    if (count == 0) continue;
    at::Tensor of_expert = inner.narrow(0, first, count);
    // A stream for each expert: a token's draws differ between those that it visits.
    const std::int64_t expert = rows.copied != nullptr ? rows.copied->copies.experts_here()[e]
                                                       : shape_.first_expert + static_cast<std::int64_t>(e);
    const kernels::Dropout rule{
        .stream = Random(context.seed, fmt::format("dropout/{}/expert {}/step {}", shape_.name, expert, context.step)),
        .p = shape_.dropout};
    kernels::dropout_(of_expert, rule, rows.token_numbers.narrow(0, first, count), 0, inner.size(1));
  }
}

bool Experts::times_gates_at_once(const at::Tensor& pre_activation, const Context& context) const {
  return pre_activation.is_cpu() && !(context.training && shape_.dropout > 0);
}

at::Tensor Experts::forward(const ExpertRows& rows, const at::Tensor& pre_activation, Context& context) const {
  at::Tensor inner;
  if (rows.ends.defined() || times_gates_at_once(pre_activation, context)) {
    inner = kernels::expert_activation(pre_activation, rows.gates, shape_.activation, shape_.gated);
  } else {
    inner = activations(pre_activation);
    drop(inner, rows, context);
    scale_rows_(inner, rows.gates);
  }
  return multiply(out_, inner, out_weight(rows, context), rows, context);
}

void Experts::add_weight_grad(Param& weight, const at::Tensor& dy, const at::Tensor& x, const ExpertRows& rows,
                              Context& context, Tape& tape) const {
  if (weight.trainable) context.flops += gemm_flops(dy.size(1), dy.size(0), x.size(1));
  const ExpertCopies* copies = rows.copied != nullptr && rows.copied->copies.any() ? &rows.copied->copies : nullptr;
  tape.weight_gradient([&weight, dy, x, kept = std::vector<std::int64_t>(rows.offsets.begin(), rows.offsets.end()),
                        ends = rows.ends, copies, &context] {
    if (!weight.trainable) return;
    context.begin_adding(weight);
    const bool accumulate = !weight.gradient_empty;
    const auto add_to = [&](const at::Tensor& sums, bool adds) {
      if (weight.gemm != spec::GemmPrecision::kSame)
        return fp8_grouped_weight_grad(
            {.weight = weight, .dy = dy, .x = x, .offsets = kept, .out = sums, .accumulate = adds});
      kernels::grouped_weight_grad({.a = dy, .b = x, .offsets = kept, .out = sums, .accumulate = adds, .ends = ends});
    };
    at::Tensor& out = gradient_to_write(weight);
    if (copies == nullptr) {
      add_to(out, accumulate);
    } else {
      std::vector<std::int64_t> sizes = out.sizes().vec();
      sizes[0] = static_cast<std::int64_t>(kept.size()) - 1;
      at::Tensor all = at::empty(sizes, out.options());
      add_to(all, false);
      copies->add_to_owners(all, out, /*fresh=*/!accumulate);
    }
    context.end_adding(weight);
  });
}

void Experts::end_backward(Context& context, Tape& tape) const {
  tape.weight_gradient([this, &context] {
    context.added(out_);
    context.added(in_);
  });
}

Experts::Grad Experts::backward(at::Tensor dy, const ExpertRows& rows, const at::Tensor& pre_activation,
                                Context& context, Tape& tape) const {
  at::Tensor dinner = grad_input(out_, dy, out_weight(rows, context), rows, context);
  if (times_gates_at_once(pre_activation, context)) {
    kernels::ExpertActivationGrad made = kernels::expert_activation_backward(
        std::move(dinner), pre_activation, rows.gates, shape_.activation, shape_.gated, /*reuse=*/false);
    add_weight_grad(out_, dy, made.y, rows, context, tape);
    Grad grad{.x = grad_input(in_, made.pre, in_weight(rows, context), rows, context), .gates = std::move(made.gates)};
    add_weight_grad(in_, made.pre, rows.x, rows, context, tape);
    return grad;
  }
  at::Tensor inner = activations(pre_activation);
  drop(inner, rows, context);
  Grad grad{.x = {}, .gates = scale_rows_backward_(dinner, inner, rows.gates)};
  scale_rows_(inner, rows.gates);
  add_weight_grad(out_, dy, inner, rows, context, tape);
  drop(dinner, rows, context);
  at::Tensor no_sum;
  const at::Tensor dpre = activation_grad(
      std::move(dinner), {.pre_activation = pre_activation, .activation = shape_.activation, .gated = shape_.gated},
      at::Tensor(), no_sum);
  grad.x = grad_input(in_, dpre, in_weight(rows, context), rows, context);
  add_weight_grad(in_, dpre, rows.x, rows, context, tape);
  return grad;
}

Experts::Grad Experts::backward_on_gpu(at::Tensor dy, const ExpertRows& rows, at::Tensor pre_activation,
                                       Context& context, Tape& tape) const {
  const at::Tensor& out = context.value(out_);
  context.flops += gemm_flops(dy.size(0), out.size(1), out.size(2));
  at::Tensor dinner = kernels::grouped_gemm({.a = dy, .b = out, .offsets = {}, .ends = rows.ends});
  const bool alone = pre_activation.use_count() == 1 && pre_activation.storage().use_count() == 1;
  kernels::ExpertActivationGrad inner = kernels::expert_activation_backward(
      std::move(dinner), pre_activation, rows.gates, shape_.activation, shape_.gated, /*reuse=*/alone);
  pre_activation = at::Tensor();
  add_weight_grad(out_, dy, inner.y, rows, context, tape);
  inner.y = dy = at::Tensor();  // their memory is that of the tokens' rows, and these give theirs to the result
  add_weight_grad(in_, inner.pre, kernels::permute_rows(rows.x, rows.row_of), rows, context, tape);
  const at::Tensor& in = context.value(in_);
  context.flops += gemm_flops(inner.pre.size(0), in.size(1), in.size(2));
  Grad grad{.x = kernels::grouped_gemm({.a = inner.pre, .b = in, .offsets = {}, .ends = rows.ends}),
            .gates = std::move(inner.gates)};
  end_backward(context, tape);
  return grad;
}

}  // namespace trireme::nn::moe
