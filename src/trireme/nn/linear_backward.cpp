#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <optional>

#include "trireme/base/error.h"
#include "trireme/nn/exchange.h"
#include "trireme/nn/flops.h"
#include "trireme/nn/linear.h"

namespace trireme::nn {

using Op = kernels::Epilogue::Op;

at::Tensor Linear::backward(at::Tensor dy, Context& context, Tape& tape) {
  const auto [x] = tape.pop<1>();
  return backward({.grad = std::move(dy)}, {.x = x}, context, tape).grad;
}

bool Linear::local() const {
  return split_ == LinearSplit::kNone || (split_ == LinearSplit::kRow && !parallel_->splits_sequence());
}

bool Linear::wants_row_sum() const { return bias_ && bias_->trainable && split_ != LinearSplit::kRow; }

bool Linear::quantises_gated_grad(const LinearInput& input) const {
  const auto takes = [](const Linear& layer) {
    return layer.split_ == LinearSplit::kNone && quantises_gated(layer.weight_) && layer.weight_.trainable &&
           layer.bias_ == nullptr;
  };
  return !input.x.defined() && input.gated && input.producer != nullptr && takes(*this) && takes(*input.producer);
}

kernels::Fp8Pair Linear::quantise_grad(const at::Tensor& dy) const {
  const at::Tensor rows = as_rows(dy);
  if (!in_fp8(weight_, rows.size(0)) || !weight_.trainable) return {};
  return quantise(weight_, rows, {.role = Fp8Role::kGradient, .rows = true, .columns = true});
}

at::Tensor Linear::grad_input(const LinearGrad& dy, at::ScalarType type, const kernels::Epilogue& epilogue,
                              Context& context) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor rows = dy.grad.defined() ? as_rows(dy.grad) : at::Tensor();
  const std::int64_t count = rows.defined() ? rows.size(0) : dy.quantised.rows.values.size(0);
  context.flops += gemm_flops(count, weight.size(0), weight.size(1));
  kernels::Gemm call{.a = rows, .b = weight, .epilogue = epilogue};
  if (in_fp8(weight_, count)) {
    call.a = dy.quantised.rows.values.defined()
                 ? dy.quantised.rows
                 : quantise(weight_, rows, {.role = Fp8Role::kGradient, .rows = true}).rows;
    call.b = quantised_weight(context, /*forward=*/false).columns;
    call.transpose_b = true;
    call.out_type = type;
  }
  return kernels::gemm(call).out;
}

at::Tensor Linear::grad_input(const at::Tensor& dy, Context& context) const {
  return grad_input({.grad = dy}, dy.scalar_type(), {}, context).view(with_width(dy, context.value(weight_).size(1)));
}

void Linear::add_weight_grad(WeightGrad of, Context& context, Tape& tape) const {
  const at::Tensor& weight = context.value(weight_);
  const std::int64_t rows = of.dy.defined() ? of.dy.size(0) : of.dy8.values.size(1);
  if (weight_.trainable) context.flops += gemm_flops(weight.size(0), rows, weight.size(1));
  tape.weight_gradient([this, of = std::move(of), &context] {
    const bool fp8 = weight_.trainable && (of.dy8.values.defined() || in_fp8(weight_, of.dy.size(0)));
    // One call for both gradients where they are made of the same rows.
    const bool both =
        bias_ && !fp8 && !of.row_sum.defined() && of.dy_of_bias.const_data_ptr() == of.dy.const_data_ptr();
    context.begin_adding(weight_);
    if (bias_) context.begin_adding(*bias_);
    if (fp8) {
      const bool accumulate = !weight_.gradient_empty;
      const auto columns = [&](const kernels::Fp8Matrix& done, const at::Tensor& x, Fp8Role role) {
        return done.values.defined() ? done : quantise(weight_, x, {.role = role, .columns = true}).columns;
      };
      const kernels::Fp8Matrix dy8 = columns(of.dy8, of.dy, Fp8Role::kGradient);
      const kernels::Fp8Matrix x8 = columns(of.x8, of.x, Fp8Role::kActivation);
      kernels::gemm(
          {.a = dy8, .b = x8, .transpose_b = true, .out = gradient_to_write(weight_), .accumulate = accumulate});
    } else {
      nn::add_weight_grad(weight_, of.dy, of.x, both ? bias_ : nullptr);
    }
    context.end_adding(weight_);
    context.added(weight_);
    if (!bias_) return;
    if (of.row_sum.defined()) {
      add_gradient(*bias_, of.row_sum);
    } else if (!both) {
      add_row_sum_gradient(*bias_, of.dy_of_bias);
    }
    context.end_adding(*bias_);
    context.added(*bias_);
  });
}

at::Tensor Linear::column_backward(const LinearGrad& dy, const at::Tensor& x, Context& context, Tape& tape) const {
  const bool sequence = parallel_->splits_sequence();
  comm::Group& group = *parallel_->tensor;
  // What is gathered travels while the input's gradient is computed, whose sum travels beside the weight's gradient.
  std::optional<PendingAllGather> gather;
  if (sequence && !parallel_->sp_save_gathered) gather.emplace(x, group);
  const auto add = [&] {
    const at::Tensor rows = as_rows(dy.grad);
    add_weight_grad({.dy = rows, .x = as_rows(gather ? gather->wait() : x), .dy_of_bias = rows, .row_sum = dy.row_sum},
                    context, tape);
  };
  if (sequence && parallel_->overlap) {
    PendingGemm dx(dy.grad, group, [&](const at::Tensor& part) { return grad_input(part, context); });
    add();
    return dx.wait();
  }
  PendingReduceScatter dx(grad_input(dy.grad, context), group, sequence);
  add();
  return dx.wait();
}

at::Tensor Linear::row_backward(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape) const {
  const auto [whole, dx] = all_gather_gemm(dy, *parallel_->tensor, parallel_->overlap,
                                           [&](const at::Tensor& part) { return grad_input(part, context); });
  add_weight_grad({.dy = as_rows(whole), .x = as_rows(x), .dy_of_bias = as_rows(dy)}, context, tape);
  return dx;
}

LinearGrad Linear::gated_fp8_backward(const at::Tensor& dy, const LinearInput& input, Context& context,
                                      Tape& tape) const {
  const kernels::Fp8Pair dy8 = quantise_grad(dy);
  const at::Tensor dx = grad_input({.grad = dy, .quantised = dy8}, dy.scalar_type(), {}, context);
  const auto [gate, up] = split_gate_up(as_rows(input.pre_activation));
  kernels::Fp8GatedBackward made =
      quantise_gated_backward(input.producer->weight_, weight_, dx, gate, up, input.activation);
  add_weight_grad({.dy8 = dy8.columns, .x8 = std::move(made.recomputed)}, context, tape);
  return {.quantised = std::move(made.grad)};
}

LinearGrad Linear::local_backward(const LinearGrad& dy, const LinearInput& input, Context& context, Tape& tape) const {
  const at::Tensor rows = dy.grad.defined() ? as_rows(dy.grad) : at::Tensor();
  const at::ScalarType type = (rows.defined() ? rows : input.x).scalar_type();
  const LinearGrad both{.grad = dy.grad, .quantised = rows.defined() ? quantise_grad(rows) : dy.quantised};
  WeightGrad of{.dy = rows, .dy_of_bias = rows, .row_sum = dy.row_sum, .dy8 = both.quantised.columns};
  if (!input.pre_activation.defined()) {
    of.x = as_rows(input.x);
    add_weight_grad(std::move(of), context, tape);
    return {.grad = grad_input(both, type, {}, context).view(input.x.sizes())};
  }
  // Nothing is exchanged with other ranks in between: one pass over the pre-activation makes both x, where it was not
  // saved, and the gradient.
  const at::Tensor& pre_activation = input.pre_activation;
  LinearGrad out;
  out.row_sum = row_sum_for(input);
  at::Tensor x = input.x;
  if (input.gated) {
    const at::Tensor dx = grad_input(both, type, {}, context);
    at::Tensor recompute = x.defined() ? at::Tensor() : at::empty_like(dx);
    out.grad = activation_grad(dx, input, recompute, out.row_sum);
    if (!x.defined()) x = recompute;
  } else {
    kernels::Epilogue epilogue{.op = Op::kActivationBackward,
                               .activation = input.activation,
                               .pre_activation = as_rows(pre_activation),
                               .bias_grad_out = out.row_sum};
    if (!x.defined()) epilogue.recompute = x = at::empty_like(epilogue.pre_activation);
    out.grad = grad_input(both, type, epilogue, context).view(pre_activation.sizes());
  }
  of.x = as_rows(x);
  add_weight_grad(std::move(of), context, tape);
  return out;
}

at::Tensor Linear::row_sum_for(const LinearInput& input) const {
  if (input.gated || input.producer == nullptr || !input.producer->wants_row_sum()) return {};
  // By itself, to be added when the weights' gradients are: perhaps later, with the same bits.
  const at::Tensor& like = input.pre_activation;
  return at::empty({like.size(-1)}, like.options().dtype(like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
}

LinearGrad Linear::backward(const LinearGrad& dy, const LinearInput& input, Context& context, Tape& tape) const {
  TRIREME_CHECK(!dy.row_sum.defined() || wants_row_sum(), "a sum of rows that no bias of {} takes", weight_.name);
  if (quantises_gated_grad(input)) return gated_fp8_backward(dy.grad, input, context, tape);
  if (local()) return local_backward(dy, input, context, tape);
  const at::Tensor x = activated(input);
  at::Tensor dx =
      split_ == LinearSplit::kColumn ? column_backward(dy, x, context, tape) : row_backward(dy.grad, x, context, tape);
  if (!input.pre_activation.defined()) return {.grad = std::move(dx)};
  LinearGrad out;
  out.row_sum = row_sum_for(input);
  out.grad = activation_grad(std::move(dx), input, {}, out.row_sum);
  return out;
}

}  // namespace trireme::nn
