#include "trireme/nn/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "trireme/nn/flops.h"

namespace trireme::nn {
namespace {

std::vector<std::int64_t> with_width(const at::Tensor& x, std::int64_t width) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = width;
  return shape;
}

}  // namespace

Linear::Linear(Param& weight, Param* bias) : weight_(weight), bias_(bias) {
  ++weight_.uses;
  if (bias_) ++bias_->uses;
}

at::Tensor Linear::product(const at::Tensor& x, Context& context) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor rows = as_rows(x);
  context.flops += product_flops(rows.size(0), weight.size(1), weight.size(0));
  const at::Tensor y = bias_ ? at::addmm(context.value(*bias_), rows, weight.t()) : at::mm(rows, weight.t());
  return y.view(with_width(x, weight.size(0)));
}

at::Tensor Linear::gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape) const {
  const at::Tensor dy_rows = as_rows(dy);
  if (weight_.trainable) context.flops += product_flops(dy_rows.size(1), dy_rows.size(0), weight_.placement.shape[1]);
  tape.weight_gradient([this, dy_rows, x_rows = as_rows(x), &context] {
    add_product_gradient(weight_, dy_rows, x_rows);
    context.added(weight_);
    if (bias_) {
      add_row_sum_gradient(*bias_, dy_rows);
      context.added(*bias_);
    }
  });
  const at::Tensor& weight = context.value(weight_);
  context.flops += product_flops(dy_rows.size(0), weight.size(0), weight.size(1));
  return at::mm(dy_rows, weight).view(with_width(dy, weight.size(1)));
}

at::Tensor Linear::run(at::Tensor x, Context& context, Tape* tape) {
  at::Tensor y = product(x, context);
  if (tape) tape->push({std::move(x)});
  return y;
}

at::Tensor Linear::run_back(at::Tensor dy, Context& context, Tape& tape) {
  const auto [x] = tape.pop<1>();
  return gradients(dy, x, context, tape);
}

}  // namespace trireme::nn
