// Latent attention over a KV cache: [latent | shared key] of a token in one block entry, for all heads.
//
// With W_k and W_v of a head, score = q_nope W_k c + q_rope k_rope and out = W_v (sum of p c): the query is taken into
// the latent's space once, and what comes out of it once. A pair of tokens then costs 2 (2 rank + rope) operations a
// head in place of 2 (nope + rope + value), but no key or value is ever made: worth it where queries are few.
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "trireme/base/error.h"
#include "trireme/kernels/gemm.h"
#include "trireme/nn/cached_attention.h"
#include "trireme/nn/kv_cache.h"
#include "trireme/nn/latent_attention.h"

namespace trireme::nn {
namespace {

/// [tokens, heads, in] times [heads, in, out], head by head.
at::Tensor by_head(const at::Tensor& x, const at::Tensor& weights, const Context& context) {
  if (!batch_invariant(context)) return at::bmm(x.transpose(0, 1), weights).transpose(0, 1);
  at::Tensor out = at::empty({x.size(1), x.size(0), weights.size(2)}, x.options());
  for (std::int64_t head = 0; head < x.size(1); ++head) {
    kernels::gemm({.a = x.select(1, head).contiguous(),
                   .b = weights.select(0, head).t().contiguous(),
                   .transpose_b = true,
                   .out = out.select(0, head),
                   .batch_invariant = true});
  }
  return out.transpose(0, 1);
}

}  // namespace

at::Tensor LatentAttention::absorb_queries(const at::Tensor& q, Context& context) const {
  const std::int64_t heads = core_.shape().num_heads, nope = sizes_.qk_nope_head_dim;
  const at::Tensor weights =
      context.value(project_.kv_up.weight()).view({heads, nope + sizes_.v_head_dim, sizes_.kv_lora_rank});
  context.flops += gemm_flops(q.size(0) * heads, nope, sizes_.kv_lora_rank);
  return at::cat(
      {by_head(q.narrow(2, 0, nope), weights.narrow(1, 0, nope), context), q.narrow(2, nope, sizes_.qk_rope_head_dim)},
      2);
}

at::Tensor LatentAttention::absorb_values(const at::Tensor& weighted, Context& context) const {
  const std::int64_t heads = core_.shape().num_heads, nope = sizes_.qk_nope_head_dim;
  const at::Tensor weights =
      context.value(project_.kv_up.weight()).view({heads, nope + sizes_.v_head_dim, sizes_.kv_lora_rank});
  context.flops += gemm_flops(weighted.size(0) * heads, sizes_.kv_lora_rank, sizes_.v_head_dim);
  return by_head(weighted.narrow(2, 0, sizes_.kv_lora_rank), weights.narrow(1, nope, sizes_.v_head_dim).transpose(1, 2),
                 context);
}

at::Tensor LatentAttention::attend_plain(const at::Tensor& q, const at::Tensor& entries, std::int64_t position,
                                         Context& context) const {
  const at::Tensor kv =
      project_.kv_up.forward({.x = entries.narrow(2, 0, sizes_.kv_lora_rank).contiguous()}, {}, context).y;
  const Heads heads = expand(q, kv, entries.narrow(2, sizes_.kv_lora_rank, sizes_.qk_rope_head_dim));
  const std::int64_t queries = q.size(1), keys = entries.size(1);
  context.flops += pair_cost(q, heads.v)
                       .flops(visible_pairs({true, core_.shape().window}, {.first = keys - queries, .count = queries},
                                            {.count = keys}, /*batch=*/1));
  return forward_block(core_.shape(), {.query = position + keys - queries, .key = position}, context, q, heads.k,
                       heads.v)
      .out;
}

at::Tensor LatentAttention::attend_latents(Latents& latents, Context& context) const {
  const KvBatch& batch = *context.kv_batch;
  const AttentionShape& shape = core_.shape();
  const at::Tensor q = project_queries(latents, context);
  TRIREME_CHECK(shape.causal && !context.training, "a KV cache is for causal attention in inference");
  TRIREME_CHECK(q.size(0) == 1 && q.size(1) == batch.tokens, "[{}, {}] tokens came for a batch of [1, {}]", q.size(0),
                q.size(1), batch.tokens);
  const at::Tensor entries = at::cat({latents.kv, latents.key}, 2);
  LatentCache cache(shape, context, entries, latent_scale_part(sizes_.kv_lora_rank, sizes_.qk_rope_head_dim));

  at::Tensor out = at::empty({q.size(1), shape.num_heads, sizes_.v_head_dim}, q.options());
  std::vector<std::size_t> few;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const KvBatch::SequenceRows& sequence = batch.sequences[i];
    if (q.is_cpu() && reads_in_place(q, sequence, context)) {
      few.push_back(i);
      continue;
    }
    const auto own = [&](const at::Tensor& all) { return all.narrow(1, sequence.first_row, sequence.query_len); };
    // The first chunk of a prompt sees itself alone, which is in order already.
    const auto [seen, first] = sequence.context_len == 0 ? LatentCache::Entries{own(entries), 0} : cache.gather(i);
    out.narrow(0, sequence.first_row, sequence.query_len).copy_(attend_plain(own(q), seen, first, context).squeeze(0));
  }
  if (!few.empty()) {
    std::vector<at::Tensor> rows;
    for (const std::size_t i : few)
      rows.push_back(q.squeeze(0).narrow(0, batch.sequences[i].first_row, batch.sequences[i].query_len));
    const at::Tensor weighted = cache.attend_in_place(absorb_queries(at::cat(rows, 0), context), few);
    const at::Tensor values = absorb_values(weighted, context);
    std::int64_t at = 0;
    for (const std::size_t i : few) {
      const KvBatch::SequenceRows& sequence = batch.sequences[i];
      out.narrow(0, sequence.first_row, sequence.query_len).copy_(values.narrow(0, at, sequence.query_len));
      at += sequence.query_len;
    }
  }
  return out.unsqueeze(0);
}

}  // namespace trireme::nn
