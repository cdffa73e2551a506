#include "trireme/nn/linear.h"

#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <optional>

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

Linear::Linear(Param& weight, Param* bias, LinearSplit split, const Team& team)
    : weight_(weight), bias_(bias), split_(team.tensor_ranks() > 1 ? split : LinearSplit::kNone), team_(&team) {
  ++weight_.uses;
  if (bias_) ++bias_->uses;
}

at::Tensor Linear::multiply(const at::Tensor& x, bool with_bias, Context& context) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor rows = as_rows(x);
  context.flops += product_flops(rows.size(0), weight.size(1), weight.size(0));
  const at::Tensor y =
      with_bias && bias_ ? at::addmm(context.value(*bias_), rows, weight.t()) : at::mm(rows, weight.t());
  return y.view(with_width(x, weight.size(0)));
}

at::Tensor Linear::multiply_back(const at::Tensor& dy, Context& context) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor rows = as_rows(dy);
  context.flops += product_flops(rows.size(0), weight.size(0), weight.size(1));
  return at::mm(rows, weight).view(with_width(dy, weight.size(1)));
}

at::Tensor Linear::product(const at::Tensor& x, Context& context, at::Tensor* kept) const {
  if (kept) *kept = x;
  if (split_ == LinearSplit::kColumn && team_->splits_sequence()) {
    auto [whole, y] = gathered_product(x, *team_->tensor, team_->overlap,
                                       [&](const at::Tensor& part) { return multiply(part, true, context); });
    if (kept && team_->keep_gathered) *kept = std::move(whole);
    return y;
  }
  if (split_ != LinearSplit::kRow) return multiply(x, true, context);
  at::Tensor y;
  if (team_->splits_sequence()) {
    y = scattered_product(x, *team_->tensor, team_->overlap,
                          [&](const at::Tensor& part) { return multiply(part, false, context); });
  } else {
    y = multiply(x, false, context);
    sum_over(y, *team_->tensor);
  }
  if (bias_) y.add_(context.value(*bias_));
  return y;
}

void Linear::add_weight_gradient(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape,
                                 const at::Tensor& dy_of_bias) const {
  const at::Tensor dy_rows = as_rows(dy), x_rows = as_rows(x);
  if (weight_.trainable) context.flops += product_flops(dy_rows.size(1), dy_rows.size(0), x_rows.size(1));
  tape.weight_gradient([this, dy_rows, x_rows, bias_rows = as_rows(dy_of_bias), &context] {
    add_product_gradient(weight_, dy_rows, x_rows);
    context.added(weight_);
    if (bias_) {
      add_row_sum_gradient(*bias_, bias_rows);
      context.added(*bias_);
    }
  });
}

at::Tensor Linear::column_gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape) const {
  const bool sequence = team_->splits_sequence();
  comm::Group& group = *team_->tensor;
  // What is gathered travels while the input's gradient is computed, whose sum travels beside the weights' gradient.
  std::optional<PendingGather> gather;
  if (sequence && !team_->keep_gathered) gather.emplace(x, group);
  if (sequence && team_->overlap) {
    PendingProduct dx(dy, group, [&](const at::Tensor& part) { return multiply_back(part, context); });
    add_weight_gradient(dy, gather ? gather->wait() : x, context, tape, dy);
    return dx.wait();
  }
  at::Tensor partial = multiply_back(dy, context);
  PendingSum dx(std::move(partial), group, sequence);
  add_weight_gradient(dy, gather ? gather->wait() : x, context, tape, dy);
  return dx.wait();
}

at::Tensor Linear::row_gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape) const {
  if (!team_->splits_sequence()) {
    add_weight_gradient(dy, x, context, tape, dy);
    return multiply_back(dy, context);
  }
  const auto [whole, dx] = gathered_product(dy, *team_->tensor, team_->overlap,
                                            [&](const at::Tensor& part) { return multiply_back(part, context); });
  add_weight_gradient(whole, x, context, tape, dy);
  return dx;
}

at::Tensor Linear::gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape) const {
  if (split_ == LinearSplit::kColumn) return column_gradients(dy, x, context, tape);
  if (split_ == LinearSplit::kRow) return row_gradients(dy, x, context, tape);
  add_weight_gradient(dy, x, context, tape, dy);
  return multiply_back(dy, context);
}

at::Tensor Linear::run(at::Tensor x, Context& context, Tape* tape) {
  at::Tensor kept;
  at::Tensor y = product(x, context, &kept);
  if (tape) tape->push({std::move(kept)});
  return y;
}

at::Tensor Linear::run_back(at::Tensor dy, Context& context, Tape& tape) {
  const auto [x] = tape.pop<1>();
  return gradients(dy, x, context, tape);
}

}  // namespace trireme::nn
