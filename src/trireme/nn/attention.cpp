#include "trireme/nn/attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/nn/cached_attention.h"
#include "trireme/nn/context_memory.h"

namespace trireme::nn {

SelfAttention::SelfAttention(AttentionShape shape, Linear qkv, Linear out, std::optional<QueryKeyNorm> norms,
                             std::shared_ptr<RotaryEmbedding> rotary, std::unique_ptr<ContextCore> core)
    : core_(std::move(shape), std::move(core)),
      qkv_(qkv),
      out_(out),
      norms_(std::move(norms)),
      rotary_(std::move(rotary)) {}

SelfAttention::Heads SelfAttention::split(const at::Tensor& qkv) const {
  const AttentionShape& shape = core_.shape();
  const at::Tensor heads = qkv.view({qkv.size(0), qkv.size(1), -1, shape.head_dim});
  return {heads.narrow(2, 0, shape.num_heads), heads.narrow(2, shape.num_heads, shape.num_kv_heads),
          heads.narrow(2, shape.num_heads + shape.num_kv_heads, shape.num_kv_heads)};
}

void SelfAttention::normalise(at::Tensor& qkv, Context& context, Tape* tape) {
  if (!norms_) return;
  const Heads heads = split(qkv);
  // The norms keep their inputs, and the views' memory is about to be overwritten.
  heads.q.copy_(norms_->queries.forward(heads.q.contiguous(), context, tape));
  heads.k.copy_(norms_->keys.forward(heads.k.contiguous(), context, tape));
}

void SelfAttention::normalise_backward(at::Tensor& dqkv, Context& context, Tape& tape) {
  if (!norms_) return;
  const Heads heads = split(dqkv);
  heads.k.copy_(norms_->keys.backward(heads.k.contiguous(), context, tape));
  heads.q.copy_(norms_->queries.backward(heads.q.contiguous(), context, tape));
}

void SelfAttention::rotate(at::Tensor& qkv, const Context& context, bool inverse) const {
  if (!rotary_) return;
  const AttentionShape& shape = core_.shape();
  // Queries and keys lie side by side and are rotated alike.
  at::Tensor queries_and_keys =
      qkv.view({qkv.size(0), qkv.size(1), -1, shape.head_dim}).narrow(2, 0, shape.num_heads + shape.num_kv_heads);
  rotary_->rotate_(queries_and_keys, sequence_of(context, shape.stream), kernels::RotaryPairs::kHalves, inverse);
}

ResidualSum SelfAttention::forward_add(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) {
  LinearOutput projected = qkv_.forward({.x = std::move(x)}, {}, context);
  at::Tensor qkv = std::move(projected.y);
  normalise(qkv, context, tape);
  rotate(qkv, context, /*inverse=*/false);
  const Heads heads = split(qkv);
  if (context.kv_batch != nullptr) {
    TRIREME_CHECK(tape == nullptr && !core_.shares_rows(),
                  "a KV cache is for inference, by ranks that have whole sequences");
    const at::Tensor out = attend_cached(core_.shape(), context, heads.q, heads.k, heads.v);
    return residual_sum(residual, out_.forward({.x = merge_heads(out)}, {.residual = residual}, context));
  }
  context.flops += core_.flops(context, heads.q.size(0), heads.q.size(1), pair_cost(heads.q, heads.v));
  auto [out, kept] = core_.forward(context, heads.q, heads.k, heads.v);
  LinearOutput y = out_.forward({.x = merge_heads(out)}, {.residual = residual}, context);
  if (tape) {
    const at::Tensor none;
    tape->push(
        core_.shape().recompute_core
            ? Tensors{std::move(projected.saved_input), heads.q, heads.k, heads.v, none, none, none}
            : Tensors{std::move(projected.saved_input), kept.q, kept.k, kept.v, kept.out, kept.lse, std::move(out)});
  }
  return residual_sum(residual, std::move(y));
}

at::Tensor SelfAttention::backward(at::Tensor dy, Context& context, Tape& tape) {
  auto [x, q, k, v, kept_out, lse, out] = tape.pop<7>();
  SavedCore kept{std::move(q), std::move(k), std::move(v), std::move(kept_out), std::move(lse)};
  const bool recomputes = !out.defined();
  if (recomputes) {
    CoreOutput again = core_.forward(context, kept.q, kept.k, kept.v);
    out = std::move(again.out);
    kept = std::move(again.kept);
  }
  const double flops = core_.flops(context, out.size(0), out.size(1), pair_cost(out, out));
  if (recomputes) context.recomputed_flops += flops;
  context.flops += 2 * flops;
  const at::Tensor dout =
      out_.backward({.grad = std::move(dy)}, {.x = merge_heads(out)}, context, tape).grad.view(out.sizes());
  const AttentionShape& shape = core_.shape();
  at::Tensor dqkv =
      at::empty({out.size(0), out.size(1), (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim}, out.options());
  const Heads parts = split(dqkv);
  CoreGradients gradients{parts.q, parts.k, parts.v};
  core_.backward(context, gradients, dout, kept);
  rotate(dqkv, context, /*inverse=*/true);
  normalise_backward(dqkv, context, tape);
  return qkv_.backward({.grad = std::move(dqkv)}, {.x = std::move(x)}, context, tape).grad;
}

CrossAttention::CrossAttention(AttentionShape shape, Linear q, Linear kv, Linear out, const ParallelContext& parallel)
    : shape_(std::move(shape)), q_(q), kv_(kv), out_(out), parallel_(&parallel) {}

std::vector<CrossAttention::QueryRange> CrossAttention::query_ranges(const Context& context,
                                                                     std::int64_t queries) const {
  const at::Tensor &documents = context.sequence.documents, &memory = context.source.documents;
  if (parallel_->tokens.ranks() == 1)
    return {{.queries = {0, queries}, .place = {.query_documents = documents, .key_documents = memory}}};
  std::vector<QueryRange> found;
  std::int64_t at = 0;
  for (const TokenRange& range : parallel_->tokens.mine(context.sequence.row_length)) {
    QueryRange& piece = found.emplace_back(QueryRange{.at = at, .queries = range, .place = {.query = range.first}});
    if (documents.defined()) piece.place.query_documents = documents.narrow(1, range.first, range.count).contiguous();
    piece.place.key_documents = memory;
    at += range.count;
  }
  TRIREME_CHECK(at == queries, "{} queries where {} were expected", queries, at);
  return found;
}

double CrossAttention::flops(const Context& context, const at::Tensor& q, const at::Tensor& rows) const {
  const at::Tensor documents = documents_on_host(context.sequence);
  double flops = 0;
  for (const QueryRange& range : query_ranges(context, q.size(1))) {
    TokenSpan queries{.first = range.queries.first, .count = range.queries.count};
    if (documents.defined()) queries.documents = documents.narrow(1, queries.first, queries.count);
    const double pairs =
        visible_pairs({shape_.causal, shape_.window}, queries, all_tokens(context.source, rows.size(1)), q.size(0));
    flops += pair_cost(q, rows).flops(pairs);
  }
  return flops;
}

at::Tensor CrossAttention::rows_of(const at::Tensor& kv) const {
  return parallel_->tokens.ranks() == 1 ? kv : gather_rows(*parallel_, kv);
}

Tensors CrossAttention::forward(Tensors inputs, Context& context, Tape* tape) {
  TRIREME_CHECK(inputs.size() == 2, "cross-attention takes an input and a memory, not {} tensors", inputs.size());
  const auto by_heads = [&](const at::Tensor& wide, std::int64_t heads) {
    return wide.view({wide.size(0), wide.size(1), heads, shape_.head_dim});
  };
  LinearOutput from_x = q_.forward({.x = inputs[0]}, {}, context);
  LinearOutput from_memory = kv_.forward({.x = inputs[1]}, {}, context);
  const at::Tensor q = by_heads(from_x.y, shape_.num_heads);
  const at::Tensor kv = by_heads(from_memory.y, 2 * shape_.num_kv_heads);
  const at::Tensor rows = rows_of(kv);
  context.flops += flops(context, q, rows);
  std::vector<at::Tensor> outs, lses;
  for (const QueryRange& range : query_ranges(context, q.size(1))) {
    CoreResult result =
        forward_block(shape_, range.place, context, q.narrow(1, range.at, range.queries.count),
                      rows.narrow(2, 0, shape_.num_kv_heads), rows.narrow(2, shape_.num_kv_heads, shape_.num_kv_heads));
    outs.push_back(std::move(result.out));
    lses.push_back(std::move(result.lse));
  }
  const at::Tensor out = outs.size() == 1 ? outs[0] : at::cat(outs, 1);
  const at::Tensor lse = lses.size() == 1 ? lses[0] : at::cat(lses, 2);
  at::Tensor y = out_.forward({.x = merge_heads(out)}, {}, context).y;
  if (tape) tape->push({std::move(from_x.saved_input), std::move(from_memory.saved_input), q, kv, out, lse});
  return {std::move(y)};
}

Tensors CrossAttention::backward(Tensors gradients, Context& context, Tape& tape) {
  const auto [x, memory, q, kv, out, lse] = tape.pop<6>();
  const at::Tensor rows = rows_of(kv);
  context.flops += 2 * flops(context, q, rows);
  const at::Tensor dout =
      out_.backward({.grad = gradients[0]}, {.x = merge_heads(out)}, context, tape).grad.view(out.sizes());
  const auto keys = [&](const at::Tensor& both) { return both.narrow(2, 0, shape_.num_kv_heads); };
  const auto values = [&](const at::Tensor& both) { return both.narrow(2, shape_.num_kv_heads, shape_.num_kv_heads); };
  at::Tensor dq = at::empty_like(q), dkv = at::empty_like(kv);
  if (parallel_->tokens.ranks() == 1) {
    CoreGradients parts{dq, keys(dkv), values(dkv)};
    backward_block(shape_, query_ranges(context, q.size(1))[0].place, context, parts, dout, q, keys(rows), values(rows),
                   {out, lse});
  } else {
    at::Tensor sums =
        at::zeros(rows.sizes(), rows.options().dtype(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
    at::Tensor seen = at::empty_like(rows);
    for (const QueryRange& range : query_ranges(context, q.size(1))) {
      const auto mine = [&](const at::Tensor& tensor) { return tensor.narrow(1, range.at, range.queries.count); };
      CoreGradients parts{mine(dq), keys(seen), values(seen)};
      backward_block(shape_, range.place, context, parts, mine(dout), mine(q), keys(rows), values(rows),
                     {mine(out).contiguous(), lse.narrow(2, range.at, range.queries.count).contiguous()});
      sums.add_(seen);
    }
    dkv.copy_(reduce_rows(*parallel_, sums));
  }
  at::Tensor dx = q_.backward({.grad = merge_heads(dq)}, {.x = x}, context, tape).grad;
  at::Tensor dmemory = kv_.backward({.grad = merge_heads(dkv)}, {.x = memory}, context, tape).grad;
  return {std::move(dx), std::move(dmemory)};
}

}  // namespace trireme::nn
