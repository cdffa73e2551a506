#include "trireme/nn/multi_token.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <utility>

#include "trireme/base/error.h"
#include "trireme/kernels/cross_entropy.h"

namespace trireme::nn {
namespace {

/// While it lives, targets and loss weights are those of one depth.
class TargetsOfDepth {
 public:
  TargetsOfDepth(Context& context, std::int64_t depth)
      : context_(context), targets_(context.targets), weights_(context.loss_weights) {
    context.targets = context.mtp.targets.select(2, depth).contiguous();
    if (context.mtp.weights.defined()) context.loss_weights = context.mtp.weights.select(2, depth).contiguous();
  }
  ~TargetsOfDepth() {
    context_.targets = std::move(targets_);
    context_.loss_weights = std::move(weights_);
  }
  TargetsOfDepth(const TargetsOfDepth&) = delete;
  TargetsOfDepth& operator=(const TargetsOfDepth&) = delete;

 private:
  Context& context_;
  at::Tensor targets_, weights_;
};

/// What stands `by` columns on in each row; `beyond` where the row ends.
at::Tensor from_later(const at::Tensor& rows, std::int64_t by, const at::Scalar& beyond) {
  const std::int64_t batch = rows.size(0), length = rows.size(1);
  return at::cat({rows.narrow(1, by, length - by), at::full({batch, by}, beyond, rows.options())}, 1);
}

}  // namespace

void shift_tokens(const at::Tensor& ids, Context& context, std::int64_t depth) {
  context.mtp = {};
  if (depth == 0 || !context.targets.defined()) return;
  const std::int64_t ignore = kernels::CrossEntropy{}.ignore, length = ids.size(1);
  TRIREME_CHECK(depth < length, "{} further tokens of sequences of {}", depth, length);
  std::vector<at::Tensor> tokens, targets, weights;
  for (std::int64_t by = 1; by <= depth; ++by) {
    at::Tensor token = from_later(ids, by, 0), target = from_later(context.targets, by, ignore);
    if (const at::Tensor& documents = context.sequence.documents; documents.defined()) {
      const at::Tensor others = documents.ne(from_later(documents, by, -1));
      token = token.masked_fill(others, 0);
      target = target.masked_fill(others, ignore);
    }
    tokens.push_back(token);
    targets.push_back(target);
    if (context.loss_weights.defined()) weights.push_back(from_later(context.loss_weights, by, 0));
  }
  context.mtp.ids = at::stack(tokens, 2);
  context.mtp.targets = at::stack(targets, 2);
  if (!weights.empty()) context.mtp.weights = at::stack(weights, 2);
}

at::Tensor MultiTokenPrediction::body(MtpModule& module, const at::Tensor& ids, const at::Tensor& h, Context& context,
                                      Tape* tape) {
  const at::Tensor embedded =
      module.embedding_norm.forward(module.embedding->forward(ids, context, tape), context, tape);
  const at::Tensor hidden = module.hidden_norm.forward(h, context, tape);
  at::Tensor x = module.projection.forward(at::cat({embedded, hidden}, 2), context, tape);
  x = std::move(module.block->forward({std::move(x)}, context, tape)[0]);
  return module.norm.forward(std::move(x), context, tape);
}

at::Tensor MultiTokenPrediction::next_hidden(std::size_t depth, const at::Tensor& ids, const at::Tensor& hidden,
                                             Context& context) {
  return body(modules_.at(depth), ids, hidden, context, nullptr);
}

at::Tensor MultiTokenPrediction::logits(std::size_t depth, at::Tensor hidden, Context& context) {
  return modules_.at(depth).head.forward(std::move(hidden), context, nullptr);
}

at::Tensor MultiTokenPrediction::forward_module(MtpModule& module, std::int64_t depth, const at::Tensor& h,
                                                Context& context, Tape* tape) {
  at::Tensor x = body(module, context.mtp.ids.select(2, depth).contiguous(), h, context, tape);
  const TargetsOfDepth targets(context, depth);
  module.head.forward(x, context, tape);
  return x;
}

at::Tensor MultiTokenPrediction::backward_module(MtpModule& module, std::int64_t depth, at::Tensor dh, Context& context,
                                                 Tape& tape) {
  const TargetsOfDepth targets(context, depth);
  at::Tensor dx = module.head.backward(at::Tensor(), context, tape);
  if (dh.defined()) dx = dx.add_(dh);
  dx = module.norm.backward(std::move(dx), context, tape);
  dx = std::move(module.block->backward({std::move(dx)}, context, tape)[0]);
  const at::Tensor joined = module.projection.backward(std::move(dx), context, tape);
  const std::int64_t hidden = joined.size(2) / 2;
  at::Tensor out = module.hidden_norm.backward(joined.narrow(2, hidden, hidden).contiguous(), context, tape);
  at::Tensor dembedded = module.embedding_norm.backward(joined.narrow(2, 0, hidden).contiguous(), context, tape);
  module.embedding->backward(std::move(dembedded), context, tape);
  return out;
}

at::Tensor MultiTokenPrediction::forward(at::Tensor h, Context& context, Tape* tape) {
  if (!context.mtp.ids.defined()) return h;
  at::Tensor x = h;
  for (std::size_t depth = 0; depth < modules_.size(); ++depth) {
    x = forward_module(modules_[depth], static_cast<std::int64_t>(depth), x, context, tape);
  }
  return h;
}

at::Tensor MultiTokenPrediction::backward(at::Tensor dh, Context& context, Tape& tape) {
  if (!context.mtp.ids.defined()) return dh;
  at::Tensor dx;
  for (std::size_t depth = modules_.size(); depth-- > 0;) {
    dx = backward_module(modules_[depth], static_cast<std::int64_t>(depth), std::move(dx), context, tape);
  }
  return at::add(dh, dx);
}

}  // namespace trireme::nn
