#include "trireme/nn/linear.h"

#include <ATen/ops/add.h>
#include <fmt/format.h>

#include <optional>

#include "trireme/base/error.h"
#include "trireme/kernels/gemm.h"
#include "trireme/nn/exchange.h"
#include "trireme/nn/flops.h"

namespace trireme::nn {
namespace {

std::vector<std::int64_t> with_width(const at::Tensor& x, std::int64_t width) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = width;
  return shape;
}

}  // namespace

Linear::Linear(Param& weight, Param* bias, LinearSplit split, const ParallelContext& parallel)
    : weight_(weight),
      bias_(bias),
      split_(parallel.tensor_ranks() > 1 ? split : LinearSplit::kNone),
      parallel_(&parallel),
      rounded_(std::make_shared<RoundedWeight>()) {
  ++weight_.uses;
  if (bias_) ++bias_->uses;
}

at::Tensor Linear::multiply(const at::Tensor& x, bool with_bias, Context& context, const at::Tensor& onto) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor onto_rows = onto.defined() ? as_rows(onto) : onto;
  const at::Tensor rows = as_rows(x), bias = with_bias && bias_ ? context.value(*bias_) : at::Tensor();
  context.flops += product_flops(rows.size(0), weight.size(1), weight.size(0));
  if (in_fp8(weight_, rows.size(0))) {
    const kernels::Fp8Pair x8 =
        round_side(weight_, rows, {.side = Fp8Side::kActivation, .rows = true, .note = context.training});
    return multiply_rounded(x8.rows, rows.scalar_type(), bias, onto_rows, context).view(with_width(x, weight.size(0)));
  }
  return kernels::linear_product(rows, weight, bias, onto_rows).view(with_width(x, weight.size(0)));
}

at::Tensor Linear::multiply_rounded(const kernels::Fp8Matrix& x, at::ScalarType type, const at::Tensor& bias,
                                    const at::Tensor& onto, Context& context) const {
  const kernels::Fp8Pair& rounded =
      rounded_->of(weight_, context.value(weight_), context.weights == nullptr && context.training, /*forward=*/true);
  return fp8_multiply(weight_, x, rounded.rows, type, bias, onto);
}

bool Linear::takes_gated() const { return split_ == LinearSplit::kNone && rounds_gated(weight_); }

at::Tensor Linear::gated_product_onto(const at::Tensor& onto, const at::Tensor& inner, kernels::Activation kind,
                                      Context& context) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor rows = as_rows(inner);
  const std::int64_t half = rows.size(1) / 2;
  TRIREME_CHECK(in_fp8(weight_, rows.size(0)), "{} is not multiplied in 8 bits", weight_.name);
  context.flops += product_flops(rows.size(0), weight.size(1), weight.size(0));
  const kernels::Fp8Pair x8 = round_gated(weight_, rows.narrow(1, 0, half), rows.narrow(1, half, half), kind,
                                          {.side = Fp8Side::kActivation, .rows = true, .note = context.training});
  const at::Tensor bias = bias_ ? context.value(*bias_) : at::Tensor();
  return multiply_rounded(x8.rows, rows.scalar_type(), bias, onto.defined() ? as_rows(onto) : onto, context)
      .view(with_width(inner, weight.size(0)));
}

at::Tensor Linear::grad_input(const at::Tensor& dy, Context& context, const RoundedGradient* rounded) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor rows = as_rows(dy);
  context.flops += product_flops(rows.size(0), weight.size(0), weight.size(1));
  if (in_fp8(weight_, rows.size(0))) {
    const kernels::Fp8Matrix dy8 = rounded != nullptr
                                       ? rounded->dy.rows
                                       : round_side(weight_, rows, {.side = Fp8Side::kGradient, .rows = true}).rows;
    return grad_input_fp8(dy8, rows.scalar_type(), context).view(with_width(dy, weight.size(1)));
  }
  return kernels::product_of(rows, weight).view(with_width(dy, weight.size(1)));
}

at::Tensor Linear::grad_input_fp8(const kernels::Fp8Matrix& dy, at::ScalarType type, Context& context) const {
  const kernels::Fp8Pair& transposed =
      rounded_->of(weight_, context.value(weight_), context.weights == nullptr && context.training, /*forward=*/false);
  return fp8_multiply(weight_, dy, transposed.columns, type);
}

void Linear::add_rounded_gradient(const kernels::Fp8Matrix& dy, const kernels::Fp8Matrix& x, Context& context,
                                  Tape& tape) const {
  if (weight_.trainable) context.flops += product_flops(dy.values.size(0), dy.values.size(1), x.values.size(0));
  tape.weight_gradient([this, dy, x, &context] {
    if (weight_.trainable) add_fp8_gradient(weight_, dy, x);
    context.added(weight_);
  });
}

at::Tensor Linear::gated_gradients(const Linear& out, const at::Tensor& dy, const at::Tensor& inner,
                                   const at::Tensor& x, kernels::Activation kind, Context& context, Tape& tape) const {
  const RoundedGradient rounded = out.round_gradient(dy);
  const at::Tensor dactive = as_rows(out.input_gradient(dy, context, rounded)), rows = as_rows(inner);
  const std::int64_t half = rows.size(1) / 2;
  const kernels::Fp8GatedBack made =
      round_gated_back(weight_, out.weight_, dactive, rows.narrow(1, 0, half), rows.narrow(1, half, half), kind);
  out.add_rounded_gradient(rounded.dy.columns, made.again, context, tape);
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor x_rows = as_rows(x);
  add_rounded_gradient(made.gradient.columns,
                       round_side(weight_, x_rows, {.side = Fp8Side::kActivation, .columns = true}).columns, context,
                       tape);
  context.flops += product_flops(rows.size(0), weight.size(0), weight.size(1));
  return grad_input_fp8(made.gradient.rows, rows.scalar_type(), context).view(x.sizes());
}

RoundedGradient Linear::round_gradient(const at::Tensor& dy) const {
  const at::Tensor rows = as_rows(dy);
  if (!in_fp8(weight_, rows.size(0)) || !weight_.trainable) return {};
  return {.dy = round_side(weight_, rows, {.side = Fp8Side::kGradient, .rows = true, .columns = true})};
}

bool Linear::takes_gelu(const at::Tensor& x) const {
  const bool alone = split_ == LinearSplit::kNone || (split_ == LinearSplit::kColumn && !parallel_->splits_sequence());
  return alone && x.is_cuda() && weight_.gemm == spec::GemmPrecision::kSame;
}

kernels::GeluLinear Linear::gelu_product(const at::Tensor& x, Context& context) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor rows = as_rows(x);
  context.flops += product_flops(rows.size(0), weight.size(1), weight.size(0));
  auto [inner, active] = kernels::gelu_linear(rows, weight, bias_ ? context.value(*bias_) : at::Tensor());
  const auto shape = with_width(x, weight.size(0));
  return {.inner = inner.view(shape), .active = active.view(shape)};
}

bool Linear::gives_gelu_back(const at::Tensor& dy) const {
  return gradients_apart() && dy.is_cuda() && weight_.gemm == spec::GemmPrecision::kSame;
}

at::Tensor Linear::gelu_gradient(const at::Tensor& dy, const at::Tensor& inner, at::Tensor& active, at::Tensor& dbias,
                                 Context& context) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor rows = as_rows(dy);
  context.flops += product_flops(rows.size(0), weight.size(0), weight.size(1));
  at::Tensor active_rows = active.defined() ? as_rows(active) : at::Tensor();
  return kernels::gelu_linear_back(rows, weight, as_rows(inner), active_rows, dbias).view(inner.sizes());
}

at::Tensor Linear::product(const at::Tensor& x, Context& context, at::Tensor* kept) const {
  if (kept) *kept = x;
  if (split_ == LinearSplit::kColumn && parallel_->splits_sequence()) {
    auto [whole, y] = gathered_product(x, *parallel_->tensor, parallel_->overlap,
                                       [&](const at::Tensor& part) { return multiply(part, true, context); });
    if (kept && parallel_->sp_save_gathered) *kept = std::move(whole);
    return y;
  }
  if (split_ != LinearSplit::kRow) return multiply(x, true, context);
  at::Tensor y;
  if (parallel_->splits_sequence()) {
    y = scattered_product(x, *parallel_->tensor, parallel_->overlap,
                          [&](const at::Tensor& part) { return multiply(part, false, context); });
  } else {
    y = multiply(x, false, context);
    sum_over(y, *parallel_->tensor);
  }
  if (bias_) y.add_(context.value(*bias_));
  return y;
}

bool Linear::fuses_residual(const at::Tensor& x) const {
  return x.is_cuda() && split_ == LinearSplit::kNone && weight_.gemm != spec::GemmPrecision::kFp8Blocks;
}

at::Tensor Linear::product_onto(const at::Tensor& onto, const at::Tensor& x, Context& context) const {
  if (onto.defined() && fuses_residual(x)) return multiply(x, true, context, onto);
  at::Tensor y = product(x, context);
  return onto.defined() ? y.add_(onto) : y;
}

void Linear::add_weight_gradient(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape,
                                 const at::Tensor& dy_of_bias, const at::Tensor& row_sum,
                                 const RoundedGradient* rounded) const {
  const at::Tensor dy_rows = as_rows(dy), x_rows = as_rows(x);
  if (weight_.trainable) context.flops += product_flops(dy_rows.size(1), dy_rows.size(0), x_rows.size(1));
  tape.weight_gradient([this, dy_rows, x_rows, bias_rows = as_rows(dy_of_bias), row_sum, &context,
                        dy8 = rounded != nullptr ? rounded->dy.columns : kernels::Fp8Matrix{}] {
    const bool narrow = weight_.trainable && in_fp8(weight_, x_rows.size(0));
    // One pass for both where they are made of the same rows.
    const bool both = bias_ && !narrow && !row_sum.defined() && bias_rows.data_ptr() == dy_rows.data_ptr();
    if (narrow) {
      const kernels::Fp8Matrix transposed =
          dy8.values.defined() ? dy8
                               : round_side(weight_, dy_rows, {.side = Fp8Side::kGradient, .columns = true}).columns;
      add_fp8_gradient(weight_, transposed,
                       round_side(weight_, x_rows, {.side = Fp8Side::kActivation, .columns = true}).columns);
    } else if (both) {
      add_product_gradients(weight_, *bias_, dy_rows, x_rows);
    } else {
      add_product_gradient(weight_, dy_rows, x_rows);
    }
    context.added(weight_);
    if (!bias_) return;
    if (row_sum.defined()) {
      add_gradient(*bias_, row_sum);
    } else if (!both) {
      add_row_sum_gradient(*bias_, bias_rows);
    }
    context.added(*bias_);
  });
}

at::Tensor Linear::column_gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape,
                                    const at::Tensor& row_sum) const {
  const bool sequence = parallel_->splits_sequence();
  comm::Group& group = *parallel_->tensor;
  // What is gathered travels while the input's gradient is computed, whose sum travels beside the weights' gradient.
  std::optional<PendingAllGather> gather;
  if (sequence && !parallel_->sp_save_gathered) gather.emplace(x, group);
  if (sequence && parallel_->overlap) {
    PendingGemm dx(dy, group, [&](const at::Tensor& part) { return grad_input(part, context); });
    add_weight_gradient(dy, gather ? gather->wait() : x, context, tape, dy, row_sum);
    return dx.wait();
  }
  at::Tensor partial = grad_input(dy, context);
  PendingReduceScatter dx(std::move(partial), group, sequence);
  add_weight_gradient(dy, gather ? gather->wait() : x, context, tape, dy, row_sum);
  return dx.wait();
}

at::Tensor Linear::row_gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape) const {
  if (!parallel_->splits_sequence()) {
    add_weight_gradient(dy, x, context, tape, dy);
    return grad_input(dy, context);
  }
  const auto [whole, dx] = gathered_product(dy, *parallel_->tensor, parallel_->overlap,
                                            [&](const at::Tensor& part) { return grad_input(part, context); });
  add_weight_gradient(whole, x, context, tape, dy);
  return dx;
}

bool Linear::gradients_apart() const {
  return split_ == LinearSplit::kNone || (split_ == LinearSplit::kRow && !parallel_->splits_sequence());
}

bool Linear::wants_row_sum() const { return bias_ && bias_->trainable && split_ != LinearSplit::kRow; }

at::Tensor Linear::gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape,
                             const at::Tensor& row_sum) const {
  TRIREME_CHECK(!row_sum.defined() || wants_row_sum(), "a sum of rows that no bias of {} takes", weight_.name);
  if (split_ == LinearSplit::kColumn) return column_gradients(dy, x, context, tape, row_sum);
  if (split_ == LinearSplit::kRow) return row_gradients(dy, x, context, tape);
  const RoundedGradient rounded = round_gradient(dy);
  add_weight_gradient(dy, x, context, tape, dy, row_sum, &rounded);
  return grad_input(dy, context, rounded.dy.rows.values.defined() ? &rounded : nullptr);
}

at::Tensor Linear::forward(at::Tensor x, Context& context, Tape* tape) {
  at::Tensor kept;
  at::Tensor y = product(x, context, &kept);
  if (tape) tape->push({std::move(kept)});
  return y;
}

at::Tensor Linear::backward(at::Tensor dy, Context& context, Tape& tape) {
  const auto [x] = tape.pop<1>();
  return gradients(dy, x, context, tape);
}

}  // namespace trireme::nn
