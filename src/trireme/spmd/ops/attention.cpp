// Attention of [batch, seq, heads, head_dim]: a rank's queries to all keys. Gradients of keys and values are then sums
// over queries.
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {

Outputs run_attention(OpCall& call) {
  const pg::Op& forward = call.forward();
  const Block *q_block = call.operand(forward.inputs[0]), *k_block = call.operand(forward.inputs[1]),
              *v_block = call.operand(forward.inputs[2]);
  TRIREME_CHECK(q_block && k_block && v_block, "operator {} lacks an operand", call.op.name);
  const at::Tensor q = q_block->data.transpose(1, 2), k = k_block->data.transpose(1, 2),
                   v = v_block->data.transpose(1, 2);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
  if (forward.function == "causal") {
    const auto options = scores.options().dtype(at::kLong);
    const Index first = q_block->origin[1];
    const at::Tensor query = at::arange(first, first + q.size(2), options).unsqueeze(1),
                     key = at::arange(k.size(2), options);
    scores = scores.masked_fill(key > query, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor p = at::softmax(scores, -1);
  if (call.op.part == pg::Part::kForward) return {at::matmul(p, v).transpose(1, 2).contiguous()};
  const Block* gradient = call.gradient(forward.outputs[0]);
  TRIREME_CHECK(gradient, "operator {} has no gradient to pass on", call.op.name);
  const at::Tensor g = gradient->data.transpose(1, 2);
  const at::Tensor dp = at::matmul(g, v.transpose(2, 3));
  const at::Tensor ds = p * (dp - at::sum(dp * p, -1, true)) * scale;
  const std::vector<int> places = call.gradient_outputs();
  Outputs outputs(call.op.outputs.size());
  const auto set = [&](std::size_t input, const at::Tensor& value) {
    if (places[input] >= 0) outputs[static_cast<std::size_t>(places[input])] = value.transpose(1, 2).contiguous();
  };
  set(0, at::matmul(ds, k));
  set(1, at::matmul(ds.transpose(2, 3), q));
  set(2, at::matmul(p.transpose(2, 3), g));
  return outputs;
}

}  // namespace trireme::spmd
