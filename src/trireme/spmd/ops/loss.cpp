// The mean cross entropy over all labels. Where classes are split, the largest logit and the sum of exponentials are
// all-reduced; the rank with the first classes has the logarithm of the sum, the one with a label's class has its
// logit: summands of one loss.
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log.h>
#include <ATen/ops/sum.h>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

struct LossCall {
  const at::Tensor& logits;
  const at::Tensor labels;  ///< with one class in place of all of them
  int classes = 0;          ///< which dimension of the logits
  double positions = 1;     ///< of the whole
};

/// Every class is here: the library's softmax, in fp32 or, of fp64, in fp64.
at::Tensor loss_of_all_classes(const LossCall& loss) {
  const at::Tensor x = loss.logits.scalar_type() == at::kDouble ? loss.logits : loss.logits.to(at::kFloat);
  const at::Tensor own = at::_log_softmax(x, loss.classes, false).gather(loss.classes, loss.labels);
  return at::sum(own, c10::IntArrayRef{}, false, at::kDouble) / -loss.positions;
}

at::Tensor gradient_of_all_classes(const LossCall& loss) {
  const at::Tensor x = loss.logits.scalar_type() == at::kDouble ? loss.logits : loss.logits.to(at::kFloat);
  at::Tensor gradient = at::_softmax(x, loss.classes, false);
  gradient.scatter_add_(loss.classes, loss.labels, at::full_like(loss.labels, -1, gradient.options()));
  return gradient.mul_(1 / loss.positions);
}

/// Some of the classes, from `first` on; statistics travel as fp64.
at::Tensor loss_of_some_classes(OpCall& call, const LossCall& loss, Index first) {
  const at::Tensor x = loss.logits.to(at::kDouble), own = loss.labels - first;
  const at::Tensor has = own.ge(0).logical_and(own.lt(x.size(loss.classes))).to(at::kDouble);
  at::Tensor most = at::amax(x, loss.classes, true).contiguous();
  call.all_reduce(most, comm::Reduce::kMax);
  at::Tensor sum = at::sum(at::exp(x - most), loss.classes, true).contiguous();
  call.all_reduce(sum, comm::Reduce::kSum);
  const at::Tensor log_sum = most + at::log(sum);
  call.kept["log_sum"] = log_sum;
  at::Tensor value = -at::sum(x.gather(loss.classes, own.clamp(0, x.size(loss.classes) - 1)) * has);
  if (first == 0) value = value + at::sum(log_sum);
  return value / loss.positions;
}

at::Tensor gradient_of_some_classes(OpCall& call, const LossCall& loss, Index first) {
  const at::Tensor x = loss.logits.to(at::kDouble), own = loss.labels - first;
  const at::Tensor has = own.ge(0).logical_and(own.lt(x.size(loss.classes))).to(at::kDouble);
  at::Tensor gradient = at::exp(x - call.kept.at("log_sum"));
  gradient.scatter_add_(loss.classes, own.clamp(0, x.size(loss.classes) - 1), -has);
  return gradient / loss.positions;
}

}  // namespace

Outputs run_loss(OpCall& call) {
  const pg::Op& forward = call.forward();
  const Block *logits = call.operand(forward.inputs[0]), *labels = call.operand(forward.inputs[1]);
  TRIREME_CHECK(logits && labels, "operator {} lacks an operand", call.op.name);
  const auto& dims = call.dims(forward.inputs[0]);
  const int classes = position(dims, forward.dims[0]);
  double positions = 1;
  for (const int dim : call.dims(forward.inputs[1])) positions *= static_cast<double>(call.graph.size(dim));
  const LossCall loss{logits->data, aligned(labels->data, call.dims(forward.inputs[1]), dims), classes, positions};
  const Index first = logits->origin[static_cast<std::size_t>(classes)];
  const bool has_all = logits->data.size(classes) == call.graph.size(forward.dims[0]);
  if (call.op.part == pg::Part::kForward) {
    const at::Tensor value = has_all ? loss_of_all_classes(loss) : loss_of_some_classes(call, loss, first);
    return {value.to(logits->data.scalar_type())};
  }
  at::Tensor gradient = has_all ? gradient_of_all_classes(loss) : gradient_of_some_classes(call, loss, first);
  // Nothing stands above most losses; where something does, its gradient is a factor.
  if (const Block* above = call.gradient(forward.outputs[0])) gradient = gradient * above->data;
  return {gradient.to(logits->data.scalar_type()).contiguous()};
}

}  // namespace trireme::spmd
