#include "trireme/nn/norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace trireme::nn {

Norm::Norm(kernels::Norm norm, Param* weight, Param* bias) : norm_(norm), weight_(weight), bias_(bias) {
  if (weight_) ++weight_->uses;
  if (bias_) ++bias_->uses;
}

at::Tensor Norm::normalise(const at::Tensor& x, const at::Tensor& residual, at::Tensor& sum, Context& context,
                           Tape* tape) {
  const at::Tensor x_rows = as_rows(x);
  const at::Tensor residual_rows = residual.defined() ? as_rows(residual) : at::Tensor();
  at::Tensor sum_rows = residual.defined() ? at::empty_like(x_rows) : at::Tensor();
  at::Tensor y = at::empty_like(x_rows), mean, rstd;
  if (tape) {
    const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    rstd = at::empty({x_rows.size(0)}, x.options().dtype(type));
    if (norm_.kind == kernels::NormKind::kLayer) mean = at::empty_like(rstd);
  }
  const at::Tensor none;
  kernels::norm_forward({.x = x_rows,
                         .residual = residual_rows,
                         .weight = weight_ ? context.value(*weight_) : none,
                         .bias = bias_ ? context.value(*bias_) : none,
                         .y = y,
                         .sum = sum_rows,
                         .mean = mean,
                         .rstd = rstd},
                        norm_);
  if (residual.defined()) sum = sum_rows.view(x.sizes());
  if (tape) tape->push({residual.defined() ? sum_rows : x_rows, mean, rstd});
  return y.view(x.sizes());
}

at::Tensor Norm::forward(at::Tensor x, Context& context, Tape* tape) {
  at::Tensor none;
  return normalise(x, none, none, context, tape);
}

Norm::Sum Norm::forward_sum(const at::Tensor& x, const at::Tensor& delta, Context& context, Tape* tape) {
  Sum out;
  out.y = normalise(x, delta, out.sum, context, tape);
  return out;
}

at::Tensor Norm::recompute(const Tensors& kept, Context& context) {
  at::Tensor none;
  return normalise(kept.at(0), none, none, context, nullptr);
}

at::Tensor Norm::backward_sum(const at::Tensor& dy, at::Tensor dsum, Context& context, Tape& tape) {
  const auto [x, mean, rstd] = tape.pop<3>();
  const at::Tensor dy_rows = as_rows(dy);
  const bool in_place = dsum.defined() && may_overwrite(dsum);
  const at::Tensor dsum_rows = dsum.defined() ? as_rows(dsum) : at::Tensor();
  at::Tensor dx = in_place ? dsum_rows : at::empty_like(dy_rows);
  at::Tensor dweight, dbias;
  for (Param* param : {weight_, bias_}) {
    if (param != nullptr) context.begin_adding(*param);
  }
  const bool begin_weight = weight_ && weight_->gradient_empty, begin_bias = bias_ && bias_->gradient_empty;
  if (weight_ && weight_->trainable) dweight = gradient_to_write(*weight_);
  if (bias_ && bias_->trainable) dbias = gradient_to_write(*bias_);
  const at::Tensor none;
  kernels::norm_backward({.dy = dy_rows,
                          .x = x,
                          .weight = weight_ ? context.value(*weight_) : none,
                          .mean = mean,
                          .rstd = rstd,
                          .dsum = dsum_rows,
                          .dx = dx,
                          .dweight = dweight,
                          .dbias = dbias,
                          .begin_weight = begin_weight,
                          .begin_bias = begin_bias},
                         norm_);
  for (Param* param : {weight_, bias_}) {
    if (param == nullptr) continue;
    context.end_adding(*param);
    context.added(*param);
  }
  return dx.view(dy.sizes());
}

at::Tensor Norm::backward(at::Tensor dy, Context& context, Tape& tape) {
  return backward_sum(dy, at::Tensor(), context, tape);
}

}  // namespace trireme::nn
