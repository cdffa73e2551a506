#include "trireme/nn/head.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "trireme/base/error.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/kernels/gemm.h"
#include "trireme/kernels/skinny_gemm.h"
#include "trireme/nn/distillation.h"
#include "trireme/nn/exchange.h"
#include "trireme/nn/flops.h"
#include "trireme/nn/kv_cache.h"

namespace trireme::nn {
namespace {

/// Losses, z-losses and weights of tokens, added up where the tokens are: reading them there and then would make the
/// host wait for a GPU.
class Totals {
 public:
  explicit Totals(const at::Tensor& weights) : sums_(at::zeros({4}, weights.options().dtype(at::kDouble))) {
    add(kCount, weights);
  }
  enum Which : std::int64_t { kLoss, kZLoss, kSoftLoss, kCount };
  void add(Which which, const at::Tensor& numbers) { sums_.select(0, which).add_(at::sum(numbers, at::kDouble)); }

  /// Into the context, read now or left for later. The mean of all terms. The kernels' z-losses have their weight in
  /// them; the term tells it apart. `soft_weight`: of the teacher's part of the loss, 0: there is no teacher.
  at::Tensor tell(Context& context, const HeadOptions& options, double soft_weight, at::ScalarType type) const {
    const double z_weight = options.z_loss;
    const at::Tensor count = sums_.select(0, kCount);
    at::Tensor all = sums_.select(0, kLoss);
    std::vector<LossTerm> terms;
    terms.push_back(
        {.name = options.term, .pending = at::stack({all, count}), .weight = options.weight * (1 - soft_weight)});
    if (soft_weight > 0) {
      terms.push_back({.name = "distillation_loss",
                       .pending = at::stack({sums_.select(0, kSoftLoss), count}),
                       .weight = options.weight * soft_weight});
      all = all * (1 - soft_weight) + sums_.select(0, kSoftLoss) * soft_weight;
    }
    if (z_weight > 0) {
      terms.push_back(
          {.name = "z_loss", .pending = at::stack({sums_.select(0, kZLoss) / z_weight, count}), .weight = z_weight});
      all = all + sums_.select(0, kZLoss);
    }
    if (!context.losses_later) settle(terms);
    for (LossTerm& term : terms) context.losses.push_back(std::move(term));
    // Without a token that takes part all of them are 0, and so is the mean.
    return (all / at::clamp_min(count, std::numeric_limits<double>::min())).to(type);
  }

 private:
  at::Tensor sums_;
};

/// Where a rank has a slice of the classes, a number that no rank has would pass unnoticed.
void check_targets(const at::Tensor& targets, std::int64_t vocab_size) {
  if (targets.is_cuda()) return;  // who put them there has looked
  const at::Tensor numbers = targets.contiguous();
  const std::int64_t ignore = kernels::CrossEntropy{}.ignore;
  for (const std::int64_t target :
       std::span(numbers.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(numbers.numel()))) {
    if ((target >= 0 && target < vocab_size) || target == ignore) continue;
    throw ConfigError(fmt::format("target {} is outside the model's vocabulary of {}", target, vocab_size),
                      fmt::format("targets that take no part are {}", ignore));
  }
}

}  // namespace

Head::Head(Param& weight, Param* bias, HeadOptions options, const ParallelContext& parallel)
    : weight_(weight), bias_(bias), options_(options), parallel_(&parallel), slices_(parallel.tensor_ranks() > 1) {
  ++weight_.uses;
  if (bias_) ++bias_->uses;
  const layout::Box& box = weight_.placement.pieces.at(0).box;
  first_class_ = box.begin[0];
  classes_ = box.end[0] - box.begin[0];
}

at::Tensor Head::logits(const at::Tensor& rows, Context& context) const {
  if (const kernels::QuantisedWeight* quantised = quantised_of(context, weight_)) {
    context.flops += gemm_flops(rows.size(0), quantised->columns, quantised->rows);
    return kernels::gemm({.a = rows,
                          .b = *quantised,
                          .transpose_b = true,
                          .epilogue = {.bias = bias_ ? context.value(*bias_) : at::Tensor()},
                          .batch_invariant = batch_invariant(context)})
        .out;
  }
  const at::Tensor& weight = context.value(weight_);
  context.flops += gemm_flops(rows.size(0), weight.size(1), weight.size(0));
  const kernels::SkinnyGemm few{.x = rows, .weight = weight, .bias = bias_ ? context.value(*bias_) : at::Tensor()};
  if (context.kv_batch != nullptr && kernels::fits_skinny_gemm(few)) return kernels::skinny_gemm(few);
  return kernels::gemm({.a = rows,
                        .b = weight,
                        .transpose_b = true,
                        .epilogue = {.bias = bias_ ? context.value(*bias_) : at::Tensor()},
                        .batch_invariant = batch_invariant(context)})
      .out;
}

at::Tensor Head::all_logits(const at::Tensor& rows, Context& context) const {
  const at::Tensor mine = logits(rows, context);
  if (!slices_) return mine;
  comm::Group& group = *parallel_->tensor;
  at::Tensor blocks = at::empty({group.size(), mine.size(0), mine.size(1)}, mine.options());
  group.all_gather(device::to_const_buffer(mine), device::to_buffer(blocks)).wait();
  return blocks.transpose(0, 1).reshape({mine.size(0), -1}).narrow(1, 0, weight_.placement.shape[0]).contiguous();
}

at::Tensor Head::entered_rows(const at::Tensor& x) const {
  const at::Tensor whole = parallel_->splits_sequence() ? all_gather_tokens(x, *parallel_->tensor) : x;
  return as_rows(options_.input_scale != 1 ? whole * options_.input_scale : whole);
}

Head::Values Head::cross_entropy(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& scales,
                                 double z_loss) const {
  if (slices_) return cross_entropy_over_slices(logits, targets, scales, z_loss);
  const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Values values{.losses = at::empty({logits.size(0)}, logits.options().dtype(type))};
  if (z_loss > 0) values.z_losses = at::empty_like(values.losses);
  at::Tensor lse;
  kernels::cross_entropy({.logits = logits,
                          .targets = targets,
                          .gradient_scale = scales,
                          .losses = values.losses,
                          .z_losses = values.z_losses,
                          .lse = lse},
                         {.label_smoothing = options_.label_smoothing, .z_loss = z_loss});
  return values;
}

Head::Values Head::cross_entropy_over_slices(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& scales,
                                             double z_loss) const {
  const std::int64_t vocab_size = weight_.placement.shape[0];
  const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor of_slice = targets - first_class_;
  at::Tensor real = logits.narrow(1, 0, classes_);
  // Per row: the slice's log-sum-exp, the target's logit, the sum of logits. Everything else follows from all ranks'.
  const at::Tensor mine = at::zeros({3, logits.size(0)}, logits.options().dtype(type));
  at::Tensor lse = mine.select(0, 0), hits = mine.select(0, 1);
  at::Tensor sums = options_.label_smoothing > 0 ? mine.select(0, 2) : at::Tensor();
  kernels::cross_entropy_slice_values({.logits = real, .targets = of_slice, .lse = lse, .hits = hits, .sums = sums});
  comm::Group& group = *parallel_->tensor;
  at::Tensor all = at::empty({group.size(), 3, logits.size(0)}, mine.options());
  group.all_gather(device::to_const_buffer(mine), device::to_buffer(all)).wait();
  const at::Tensor whole = at::logsumexp(all.select(1, 0), {0}), hit = at::sum(all.select(1, 1), {0});
  const double smoothing = options_.label_smoothing;
  Values values{.losses = whole - hit * (1 - smoothing)};
  if (smoothing > 0) values.losses.sub_(at::sum(all.select(1, 2), {0}), smoothing / static_cast<double>(vocab_size));
  if (z_loss > 0) values.z_losses = whole * whole * z_loss;
  if (scales.defined()) {
    kernels::cross_entropy_slice_gradients(
        {.logits = real, .targets = of_slice, .scale = scales, .lse = whole, .vocabulary = vocab_size},
        {.label_smoothing = smoothing, .z_loss = z_loss});
    logits.narrow(1, classes_, logits.size(1) - classes_).zero_();
  }
  return values;
}

at::Tensor Head::forward(at::Tensor x, Context& context, Tape* tape) {
  const bool sequence = parallel_->splits_sequence();
  const std::int64_t batch = x.size(0), length = x.size(1) * (sequence ? parallel_->tensor_ranks() : 1);
  const at::Tensor rows = entered_rows(x);
  const at::Tensor& weight = context.value(weight_);
  if (!context.targets.defined()) {
    TRIREME_CHECK(tape == nullptr, "a head without targets has no backward");
    return all_logits(rows, context).view({batch, length, -1});
  }
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor targets = context.targets.reshape({-1});
  check_targets(targets, weight_.placement.shape[0]);
  at::Tensor weights = context.loss_weights.defined() ? context.loss_weights.reshape({-1}).to(type)
                                                      : at::full({targets.size(0)}, 1.0, x.options().dtype(type));
  weights = weights * targets.ne(kernels::CrossEntropy{}.ignore).to(type);
  const Distillation* teacher = options_.term == kMainLoss ? context.distillation.get() : nullptr;
  const double soft_weight = teacher ? teacher->weight : 0, hard_weight = 1 - soft_weight;
  // The z-loss has its own weight, but comes with the targets' loss.
  const double z_loss = hard_weight > 0 ? options_.z_loss / hard_weight : 0;
  const at::Tensor taught = teacher ? teacher->head.entered_rows(teacher->head_input()) : at::Tensor();
  at::Tensor scales, soft_scales;
  if (tape) {
    scales = context.scale_on_device.defined() ? weights * context.scale_on_device : weights * context.gradient_scale;
    if (options_.weight != 1) scales = scales * options_.weight;
    if (teacher) {
      soft_scales = scales * soft_weight;
      scales = scales * hard_weight;
    }
  }
  at::Tensor dx = tape ? at::empty_like(rows) : at::Tensor();

  const std::int64_t row_bytes = weight.size(0) * x.element_size();
  const std::int64_t chunk = std::max<std::int64_t>(1, options_.chunk_bytes / row_bytes);
  Totals totals(weights);
  const bool others_too = context.watch != nullptr && context.watched_rows > 0;
  const std::int64_t watched = others_too ? context.watched_rows * length : rows.size(0);
  const auto end_adding = [&] {
    context.end_adding(weight_);
    if (bias_) context.end_adding(*bias_);
  };
  if (tape) {
    context.begin_adding(weight_);
    if (bias_) context.begin_adding(*bias_);
  }
  std::int64_t count = 0;
  for (std::int64_t first = 0; first < rows.size(0); first += count) {
    count = std::min(chunk, (first < watched ? watched : rows.size(0)) - first);
    if (tape && first > 0 && first == watched) end_adding();  // the rest is another micro-batch's
    const auto part = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, first, count) : at::Tensor();
    };
    const at::Tensor inputs = part(rows);
    at::Tensor values = logits(inputs, context);
    SoftLoss soft;
    if (teacher) {
      Context of_teacher;  // its own weights as they are, whatever version the model computes with
      const at::Tensor its = teacher->head.logits(part(taught), of_teacher);
      soft = soft_cross_entropy(values.narrow(1, 0, classes_), its.narrow(1, 0, classes_), teacher->temperature,
                                slices_ ? parallel_->tensor : nullptr);
      totals.add(Totals::kSoftLoss, soft.losses * part(weights));
    }
    const Values found = cross_entropy(values, part(targets), part(scales), z_loss);
    totals.add(Totals::kLoss, found.losses * part(weights));
    if (found.z_losses.defined()) totals.add(Totals::kZLoss, found.z_losses * part(weights) * hard_weight);
    if (!tape) continue;
    if (teacher) values.narrow(1, 0, classes_).add_(soft.gradients * part(soft_scales).unsqueeze(1));
    const double flops = gemm_flops(count, weight.size(0), weight.size(1));
    context.flops += weight_.trainable ? 2 * flops : flops;
    kernels::gemm({.a = values, .b = weight, .out = part(dx)});
    add_weight_grad(weight_, values, inputs);
    if (bias_) add_row_sum_gradient(*bias_, values);
  }
  at::Tensor mean = totals.tell(context, options_, soft_weight, type);
  if (tape) {
    if (watched == rows.size(0)) end_adding();
    dx = dx.view({batch, length, rows.size(1)});
    if (options_.input_scale != 1) dx.mul_(options_.input_scale);
    if (sequence) {
      dx = reduce_scatter_tokens(dx, *parallel_->tensor);
    } else if (slices_) {
      sum_over(dx, *parallel_->tensor);
    }
    tape->push({std::move(dx)});
  }
  return mean;
}

at::Tensor Head::backward(at::Tensor, Context& context, Tape& tape) {
  context.added(weight_);
  if (bias_) context.added(*bias_);
  return std::move(tape.pop<1>()[0]);
}

}  // namespace trireme::nn
