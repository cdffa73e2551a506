#include "trireme/nn/linear.h"

#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <optional>

#include "trireme/base/error.h"
#include "trireme/kernels/fp8.h"
#include "trireme/nn/exchange.h"
#include "trireme/nn/flops.h"

namespace trireme::nn {
namespace {

std::vector<std::int64_t> with_width(const at::Tensor& x, std::int64_t width) {
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = width;
  return shape;
}

enum class Side : std::uint8_t { kActivation, kWeight, kGradient };

/// Gradients have the format with more range where one scale serves a whole tensor; DeepSeek-V3's small blocks do not
/// need it. `turned`: for a product that sums over rows.
kernels::Fp8Matrix to_fp8(const at::Tensor& x, Side side, spec::Products products, bool turned = false) {
  const bool blocks = products == spec::Products::kFp8Blocks;
  const auto format = side == Side::kGradient && !blocks ? kernels::Fp8Format::kE5m2 : kernels::Fp8Format::kE4m3;
  const auto scaling = !blocks                 ? kernels::Fp8Scaling::kTensor
                       : side == Side::kWeight ? kernels::Fp8Scaling::kTiles
                                               : kernels::Fp8Scaling::kLines;
  kernels::Fp8Pair pair = kernels::to_fp8(x, format, scaling, !turned, turned);
  return turned ? std::move(pair.columns) : std::move(pair.rows);
}

/// Sums of small blocks are added up in float, as DeepSeek-V3 does; so are gradients.
at::Tensor product_of(const kernels::Fp8Matrix& a, const kernels::Fp8Matrix& b, at::ScalarType type,
                      spec::Products products) {
  const bool forward = a.values.scalar_type() == at::kFloat8_e4m3fn && type != at::kFloat;
  return kernels::fp8_product(a, b, type, /*fast=*/forward && products == spec::Products::kFp8);
}

}  // namespace

Linear::Linear(Param& weight, Param* bias, LinearSplit split, const Team& team)
    : weight_(weight), bias_(bias), split_(team.tensor_ranks() > 1 ? split : LinearSplit::kNone), team_(&team) {
  ++weight_.uses;
  if (bias_) ++bias_->uses;
}

bool Linear::in_fp8(const at::Tensor& rows) const {
  if (weight_.products == spec::Products::kSame) return false;
  const std::int64_t grain = weight_.products == spec::Products::kFp8 ? 16 : 128;
  if (rows.size(0) % grain != 0) {
    throw ConfigError(fmt::format("products of 8-bit floats with {} take multiples of {} tokens, not {}", weight_.name,
                                  grain, rows.size(0)),
                      fmt::format("make data.sequence a multiple of {}, or set precision.products = \"same\"", grain));
  }
  return true;
}

at::Tensor Linear::multiply(const at::Tensor& x, bool with_bias, Context& context) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor rows = as_rows(x);
  context.flops += product_flops(rows.size(0), weight.size(1), weight.size(0));
  if (in_fp8(rows)) {
    at::Tensor y = product_of(to_fp8(rows, Side::kActivation, weight_.products),
                              to_fp8(weight, Side::kWeight, weight_.products), rows.scalar_type(), weight_.products);
    if (with_bias && bias_) y.add_(context.value(*bias_));
    return y.view(with_width(x, weight.size(0)));
  }
  const at::Tensor y =
      with_bias && bias_ ? at::addmm(context.value(*bias_), rows, weight.t()) : at::mm(rows, weight.t());
  return y.view(with_width(x, weight.size(0)));
}

at::Tensor Linear::multiply_back(const at::Tensor& dy, Context& context) const {
  const at::Tensor& weight = context.value(weight_);
  const at::Tensor rows = as_rows(dy);
  context.flops += product_flops(rows.size(0), weight.size(0), weight.size(1));
  if (in_fp8(rows)) {
    return product_of(to_fp8(rows, Side::kGradient, weight_.products),
                      to_fp8(weight, Side::kWeight, weight_.products, /*turned=*/true), rows.scalar_type(),
                      weight_.products)
        .view(with_width(dy, weight.size(1)));
  }
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
                                 const at::Tensor& dy_of_bias, const at::Tensor& row_sum) const {
  const at::Tensor dy_rows = as_rows(dy), x_rows = as_rows(x);
  if (weight_.trainable) context.flops += product_flops(dy_rows.size(1), dy_rows.size(0), x_rows.size(1));
  tape.weight_gradient([this, dy_rows, x_rows, bias_rows = as_rows(dy_of_bias), row_sum, &context] {
    if (weight_.trainable && in_fp8(x_rows)) {
      const spec::Products kind = weight_.products;
      add_gradient(weight_, product_of(to_fp8(dy_rows, Side::kGradient, kind, /*turned=*/true),
                                       to_fp8(x_rows, Side::kActivation, kind, /*turned=*/true), at::kFloat, kind));
    } else {
      add_product_gradient(weight_, dy_rows, x_rows);
    }
    context.added(weight_);
    if (bias_) {
      if (row_sum.defined()) {
        add_gradient(*bias_, row_sum);
      } else {
        add_row_sum_gradient(*bias_, bias_rows);
      }
      context.added(*bias_);
    }
  });
}

at::Tensor Linear::column_gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape,
                                    const at::Tensor& row_sum) const {
  const bool sequence = team_->splits_sequence();
  comm::Group& group = *team_->tensor;
  // What is gathered travels while the input's gradient is computed, whose sum travels beside the weights' gradient.
  std::optional<PendingGather> gather;
  if (sequence && !team_->keep_gathered) gather.emplace(x, group);
  if (sequence && team_->overlap) {
    PendingProduct dx(dy, group, [&](const at::Tensor& part) { return multiply_back(part, context); });
    add_weight_gradient(dy, gather ? gather->wait() : x, context, tape, dy, row_sum);
    return dx.wait();
  }
  at::Tensor partial = multiply_back(dy, context);
  PendingSum dx(std::move(partial), group, sequence);
  add_weight_gradient(dy, gather ? gather->wait() : x, context, tape, dy, row_sum);
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

bool Linear::gradients_apart() const {
  return split_ == LinearSplit::kNone || (split_ == LinearSplit::kRow && !team_->splits_sequence());
}

bool Linear::wants_row_sum() const { return bias_ && bias_->trainable && split_ != LinearSplit::kRow; }

at::Tensor Linear::gradients(const at::Tensor& dy, const at::Tensor& x, Context& context, Tape& tape,
                             const at::Tensor& row_sum) const {
  TRIREME_CHECK(!row_sum.defined() || wants_row_sum(), "a sum of rows that no bias of {} takes", weight_.name);
  if (split_ == LinearSplit::kColumn) return column_gradients(dy, x, context, tape, row_sum);
  if (split_ == LinearSplit::kRow) return row_gradients(dy, x, context, tape);
  add_weight_gradient(dy, x, context, tape, dy, row_sum);
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
