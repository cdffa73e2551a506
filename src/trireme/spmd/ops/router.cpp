// Top-1 and top-2 gating of experts with a capacity: Switch's and GShard's combine weights.
#include <ATen/ops/arange.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {

Seats seats_of(const at::Tensor& probabilities, int choices, Index slots) {
  Seats seats;
  const auto longs = probabilities.options().dtype(at::kLong);
  const at::Tensor numbers = at::arange(probabilities.size(2), longs), places = at::arange(slots, longs);
  at::Tensor left = probabilities.detach();
  at::Tensor taken = at::zeros({probabilities.size(0), 1, probabilities.size(2)}, longs);  // by earlier choices
  for (int choice = 0; choice < choices; ++choice) {
    const at::Tensor expert = left.argmax(2);
    const at::Tensor chosen = numbers.eq(expert.unsqueeze(2)).to(at::kLong);
    const at::Tensor seat = ((chosen.cumsum(1) - 1 + taken) * chosen).sum(2);  // of each token, at its expert
    taken = taken + chosen.sum(1, true);
    seats.experts.push_back(expert);
    seats.masks.push_back((chosen.unsqueeze(3) * places.eq(seat.unsqueeze(2)).to(at::kLong).unsqueeze(2))
                              .to(probabilities.scalar_type()));
    left = left.masked_fill(chosen.to(at::kBool), -1);
  }
  return seats;
}

Outputs run_router(OpCall& call) {
  const pg::Op& forward = call.forward();
  const int choices = forward.function == "top2" ? 2 : 1;
  const Block* logits = call.operand(forward.inputs[0]);
  TRIREME_CHECK(logits, "operator {} lacks its logits", call.op.name);
  const at::Tensor p = at::softmax(logits->data, 2);
  const Index slots = call.graph.size(call.dims(forward.outputs[0]).back());
  const Seats seats = seats_of(p, choices, slots);
  std::vector<at::Tensor> chosen;
  for (const at::Tensor& expert : seats.experts) chosen.push_back(p.gather(2, expert.unsqueeze(2)).squeeze(2));
  const at::Tensor total = choices == 2 ? chosen[0] + chosen[1] : at::Tensor();
  if (call.op.part == pg::Part::kForward) {
    at::Tensor combine = at::zeros(call.outputs[0].sizes, p.options());
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const at::Tensor weight = choices == 2 ? chosen[i] / total : chosen[i];
      combine += seats.masks[i] * weight.unsqueeze(2).unsqueeze(3);
    }
    return {combine};
  }
  const Block* gradient = call.gradient(forward.outputs[0]);
  TRIREME_CHECK(gradient, "operator {} has no gradient to pass on", call.op.name);
  std::vector<at::Tensor> by_weight, by_chosen;
  for (const at::Tensor& mask : seats.masks) by_weight.push_back(at::sum(gradient->data * mask, {2, 3}));
  if (choices == 2) {
    const at::Tensor slope = (by_weight[0] - by_weight[1]) / (total * total);
    by_chosen = {slope * chosen[1], -slope * chosen[0]};
  } else {
    by_chosen = by_weight;
  }
  at::Tensor dp = at::zeros_like(p);
  for (std::size_t i = 0; i < chosen.size(); ++i)
    dp.scatter_add_(2, seats.experts[i].unsqueeze(2), by_chosen[i].unsqueeze(2));
  return {(p * (dp - at::sum(dp * p, 2, true))).contiguous()};
}

}  // namespace trireme::spmd
