// The mean cross entropy over all labels. Where classes are split, the largest logit and the sum of exponentials are
// all-reduced; the rank with the first classes has the logarithm of the sum, the one with a label's class has its
// logit: summands of one loss.
#include <ATen/ops/amax.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {

Outputs run_loss(OpCall& call) {
  const pg::Op& forward = call.forward();
  const Block *logits = call.operand(forward.inputs[0]), *labels = call.operand(forward.inputs[1]);
  TRIREME_CHECK(logits && labels, "operator {} lacks an operand", call.op.name);
  const auto& dims = call.dims(forward.inputs[0]);
  const int classes = position(dims, forward.dims[0]);
  double positions = 1;
  for (const int dim : call.dims(forward.inputs[1])) positions *= static_cast<double>(call.graph.size(dim));
  const Index first = logits->origin[static_cast<std::size_t>(classes)];
  const at::Tensor x = logits->data.to(at::kDouble);
  // The label's class among this rank's; those of other ranks' classes do not count.
  const at::Tensor own = aligned(labels->data, call.dims(forward.inputs[1]), dims) - first;
  const at::Tensor has = own.ge(0).logical_and(own.lt(x.size(classes))).to(at::kDouble);
  const at::Tensor at = own.clamp(0, x.size(classes) - 1);
  if (call.op.part == pg::Part::kForward) {
    at::Tensor most = at::amax(x, classes, true).contiguous();
    call.all_reduce(most, comm::Reduce::kMax);
    at::Tensor sum = at::sum(at::exp(x - most), classes, true).contiguous();
    call.all_reduce(sum, comm::Reduce::kSum);
    const at::Tensor log_sum = most + at::log(sum);
    call.kept["log_sum"] = log_sum;
    at::Tensor loss = -at::sum(x.gather(classes, at) * has);
    if (first == 0) loss = loss + at::sum(log_sum);
    return {(loss / positions).to(logits->data.scalar_type())};
  }
  at::Tensor gradient = at::exp(x - call.kept.at("log_sum"));
  gradient.scatter_add_(classes, at, -has);
  gradient = gradient / positions;
  // Nothing stands above most losses; where something does, its gradient is a factor.
  if (const Block* above = call.gradient(forward.outputs[0])) gradient = gradient * above->data;
  return {gradient.to(logits->data.scalar_type()).contiguous()};
}

}  // namespace trireme::spmd
