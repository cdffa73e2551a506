// Attention of [batch, seq, heads, head_dim]: a rank's queries to all keys. Gradients of keys and values are then sums
// over queries. With groups of queries for each head of keys, queries are [batch, seq, heads, group, head_dim].
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

/// Queries as rows of their head of keys, [batch, heads, group x seq, head_dim], and back.
struct Grouped {
  explicit Grouped(const at::Tensor& q)
      : sizes(q.sizes().vec()), queries(q.size(1)), group(q.dim() == 5 ? q.size(3) : 1) {}

  at::Tensor rows_of(const at::Tensor& q) const {
    if (q.dim() == 4) return q.transpose(1, 2);
    return q.permute({0, 2, 3, 1, 4}).reshape({q.size(0), q.size(2), group * queries, q.size(4)});
  }
  at::Tensor queries_of(const at::Tensor& rows) const {
    if (sizes.size() == 4) return rows.transpose(1, 2).contiguous();
    return rows.view({sizes[0], sizes[2], group, queries, sizes[4]}).permute({0, 3, 1, 2, 4}).contiguous();
  }

  std::vector<std::int64_t> sizes;
  std::int64_t queries, group;
};

}  // namespace

Outputs run_attention(OpCall& call) {
  const pg::Op& forward = call.forward();
  const Block *q_block = call.operand(forward.inputs[0]), *k_block = call.operand(forward.inputs[1]),
              *v_block = call.operand(forward.inputs[2]);
  TRIREME_CHECK(q_block && k_block && v_block, "operator {} lacks an operand", call.op.name);
  // A group's queries share keys and values: they are more rows of one head.
  const Grouped grouped(q_block->data);
  const at::Tensor q = grouped.rows_of(q_block->data), k = k_block->data.transpose(1, 2),
                   v = v_block->data.transpose(1, 2);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
  if (forward.function == "causal") {
    const auto options = scores.options().dtype(at::kLong);
    const Index first = q_block->origin[1];
    const at::Tensor query = at::arange(first, first + grouped.queries, options).repeat({grouped.group}).unsqueeze(1),
                     key = at::arange(k.size(2), options);
    at::Tensor unseen = key > query;
    if (forward.reach > 0) unseen = unseen | (key <= query - forward.reach);
    scores = scores.masked_fill(unseen, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor p = at::softmax(scores, -1);
  if (call.op.part == pg::Part::kForward) return {grouped.queries_of(at::matmul(p, v))};
  const Block* gradient = call.gradient(forward.outputs[0]);
  TRIREME_CHECK(gradient, "operator {} has no gradient to pass on", call.op.name);
  const at::Tensor g = grouped.rows_of(gradient->data);
  const at::Tensor dp = at::matmul(g, v.transpose(2, 3));
  const at::Tensor ds = p * (dp - at::sum(dp * p, -1, true)) * scale;
  const std::vector<int> places = call.gradient_outputs();
  Outputs outputs(call.op.outputs.size());
  const auto set = [&](std::size_t input, const at::Tensor& value) {
    if (places[input] < 0) return;
    outputs[static_cast<std::size_t>(places[input])] =
        input == 0 ? grouped.queries_of(value) : value.transpose(1, 2).contiguous();
  };
  set(0, at::matmul(ds, k));
  set(1, at::matmul(ds.transpose(2, 3), q));
  set(2, at::matmul(p.transpose(2, 3), g));
  return outputs;
}

}  // namespace trireme::spmd
