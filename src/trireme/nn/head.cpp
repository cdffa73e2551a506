#include "trireme/nn/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/nn/flops.h"

namespace trireme::nn {
namespace {

double sum_of(const at::Tensor& tensor) { return at::sum(tensor, at::kDouble).item<double>(); }

}  // namespace

Head::Head(Param& weight, Param* bias, HeadOptions options) : weight_(weight), bias_(bias), options_(options) {
  ++weight_.uses;
  if (bias_) ++bias_->uses;
}

at::Tensor Head::logits(const at::Tensor& rows, Context& context) const {
  const at::Tensor weight = context.value(weight_).t();
  context.flops += product_flops(rows.size(0), weight.size(0), weight.size(1));
  return bias_ ? at::addmm(context.value(*bias_), rows, weight) : at::mm(rows, weight);
}

at::Tensor Head::run(at::Tensor x, Context& context, Tape* tape) {
  const at::Tensor rows = as_rows(x);
  const at::Tensor& weight = context.value(weight_);
  if (!context.targets.defined()) {
    TRIREME_CHECK(tape == nullptr, "a head without targets has no backward");
    return logits(rows, context).view({x.size(0), x.size(1), weight.size(0)});
  }
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const kernels::CrossEntropy options{.label_smoothing = options_.label_smoothing, .z_loss = options_.z_loss};
  const at::Tensor targets = context.targets.reshape({-1});
  at::Tensor weights = context.loss_weights.defined() ? context.loss_weights.reshape({-1}).to(type)
                                                      : at::full({targets.size(0)}, 1.0, x.options().dtype(type));
  weights = weights * targets.ne(options.ignore).to(type);
  const at::Tensor scales = tape ? weights * context.gradient_scale : at::Tensor();
  at::Tensor losses = at::empty_like(weights), lse;
  at::Tensor z_losses = options_.z_loss > 0 ? at::empty_like(weights) : at::Tensor();
  at::Tensor dx = tape ? at::empty_like(rows) : at::Tensor();

  const std::int64_t row_bytes = weight.size(0) * x.element_size();
  const std::int64_t chunk = std::max<std::int64_t>(1, options_.chunk_bytes / row_bytes);
  for (std::int64_t first = 0; first < rows.size(0); first += chunk) {
    const std::int64_t count = std::min(chunk, rows.size(0) - first);
    const auto part = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, first, count) : at::Tensor();
    };
    const at::Tensor inputs = part(rows);
    at::Tensor values = logits(inputs, context), part_losses = part(losses), part_z = part(z_losses);
    kernels::cross_entropy({.logits = values,
                            .targets = part(targets),
                            .gradient_scale = part(scales),
                            .losses = part_losses,
                            .z_losses = part_z,
                            .lse = lse},
                           options);
    if (!tape) continue;
    const double again = product_flops(count, weight.size(0), weight.size(1));
    context.flops += weight_.trainable ? 2 * again : again;
    at::Tensor into = part(dx);
    at::mm_out(into, values, weight);
    add_product_gradient(weight_, values, inputs);
    if (bias_) add_row_sum_gradient(*bias_, values);
  }
  const double count = sum_of(weights), sum = sum_of(losses * weights);
  context.losses.push_back({.name = "loss", .sum = sum, .count = count});
  double value = count > 0 ? sum / count : 0;
  if (z_losses.defined()) {
    const double z_sum = sum_of(z_losses * weights);
    context.losses.push_back({.name = "z_loss", .sum = z_sum, .count = count});
    value += count > 0 ? z_sum / count : 0;
  }
  if (tape) tape->push({dx.view(x.sizes())});
  return at::full({}, value, x.options().dtype(type));
}

at::Tensor Head::run_back(at::Tensor, Context& context, Tape& tape) {
  context.added(weight_);
  if (bias_) context.added(*bias_);
  return std::move(tape.pop<1>()[0]);
}

}  // namespace trireme::nn
