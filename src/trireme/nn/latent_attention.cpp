#include "trireme/nn/latent_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "trireme/base/error.h"
#include "trireme/nn/exchange.h"

namespace trireme::nn {

LatentAttention::LatentAttention(AttentionShape shape, LatentSizes sizes, LatentProjections projections,
                                 std::shared_ptr<RotaryEmbedding> rotary, std::unique_ptr<ContextCore> core,
                                 const ParallelContext& parallel)
    : core_(std::move(shape), std::move(core)),
      sizes_(sizes),
      project_(std::move(projections)),
      rotary_(std::move(rotary)),
      parallel_(&parallel) {
  TRIREME_CHECK(core_.shape().head_dim == sizes_.qk_head_dim() && core_.shape().num_kv_heads == core_.shape().num_heads,
                "{} heads of keys of size {} for {} heads of queries of size {}", core_.shape().num_kv_heads,
                core_.shape().head_dim, core_.shape().num_heads, sizes_.qk_head_dim());
}

void LatentAttention::rotate_queries(at::Tensor& q, const Context& context, bool inverse) const {
  at::Tensor rope = q.narrow(3, sizes_.qk_nope_head_dim, sizes_.qk_rope_head_dim);
  rotary_->rotate_(rope, sequence_of(context, core_.shape().stream), kernels::RotaryPairs::kNeighbours, inverse);
}

void LatentAttention::rotate_key(at::Tensor& key, const Context& context, bool inverse) const {
  at::Tensor head = key.unsqueeze(2);
  rotary_->rotate_(head, sequence_of(context, core_.shape().stream), kernels::RotaryPairs::kNeighbours, inverse);
}

double LatentAttention::core_flops(const Context& context, std::int64_t batch, std::int64_t tokens) const {
  return core_.flops(context, batch, tokens, {core_.shape().num_heads, sizes_.qk_head_dim(), sizes_.v_head_dim});
}

LatentAttention::Latents LatentAttention::project_down(const at::Tensor& x, Context& context, Tape* tape) {
  Latents out{.q = x};
  if (project_.q_down) {
    const at::Tensor latent = project_.q_down->linear.forward({.x = x}, {}, context).y;
    out.q = project_.q_down->norm.forward(latent, context, tape);
  }
  const at::Tensor both = project_.kv_down.forward({.x = x}, {}, context).y;
  out.kv = project_.kv_norm.forward(both.narrow(2, 0, sizes_.kv_lora_rank).contiguous(), context, tape);
  out.key = both.narrow(2, sizes_.kv_lora_rank, sizes_.qk_rope_head_dim).contiguous();
  if (parallel_->splits_sequence()) out.key = all_gather_tokens(out.key, *parallel_->tensor);
  rotate_key(out.key, context, /*inverse=*/false);
  return out;
}

at::Tensor LatentAttention::project_queries(Latents& latents, Context& context) const {
  LinearOutput wide = project_.q_up.forward({.x = latents.q}, {}, context);
  latents.q = std::move(wide.saved_input);
  at::Tensor q = wide.y.view({wide.y.size(0), wide.y.size(1), core_.shape().num_heads, sizes_.qk_head_dim()});
  rotate_queries(q, context, /*inverse=*/false);
  return q;
}

LatentAttention::Heads LatentAttention::expand(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& key) const {
  const std::int64_t heads = core_.shape().num_heads, nope = sizes_.qk_nope_head_dim;
  const at::Tensor wide = kv.view({kv.size(0), kv.size(1), heads, nope + sizes_.v_head_dim});
  at::Tensor k = at::empty({kv.size(0), kv.size(1), heads, sizes_.qk_head_dim()}, kv.options());
  k.narrow(3, 0, nope).copy_(wide.narrow(3, 0, nope));
  k.narrow(3, nope, sizes_.qk_rope_head_dim).copy_(key.unsqueeze(2).expand({-1, -1, heads, -1}));
  // A copy, so that what is saved for backward does not hold the keys twice.
  return {q, std::move(k), wide.narrow(3, nope, sizes_.v_head_dim).contiguous()};
}

LatentAttention::Heads LatentAttention::project_up(Latents& latents, Context& context) const {
  const at::Tensor q = project_queries(latents, context);
  LinearOutput wide = project_.kv_up.forward({.x = latents.kv}, {}, context);
  latents.kv = std::move(wide.saved_input);
  return expand(q, wide.y, latents.key);
}

ResidualSum LatentAttention::forward_add(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) {
  Latents latents = project_down(x, context, tape);
  if (context.kv_batch != nullptr) {
    TRIREME_CHECK(tape == nullptr && !core_.shares_rows() && !parallel_->splits_sequence(),
                  "a KV cache is for inference, by ranks that have whole sequences");
    const at::Tensor out = attend_latents(latents, context);
    return residual_sum(residual, project_.out.forward({.x = merge_heads(out)}, {.residual = residual}, context));
  }
  const Latents saved = latents;
  const Heads heads = project_up(latents, context);
  context.flops += core_flops(context, heads.q.size(0), heads.q.size(1));
  auto [out, kept] = core_.forward(context, heads.q, heads.k, heads.v);
  LinearOutput y = project_.out.forward({.x = merge_heads(out)}, {.residual = residual}, context);
  if (tape) {
    const at::Tensor none;
    // Recomputing the core begins at the latents: heads are many times as wide (DeepSeek-V3, section 3.2.3).
    tape->push(core_.shape().recompute_core
                   ? Tensors{x, saved.q, saved.kv, saved.key, none, none, none, none, none, none}
                   : Tensors{x, latents.q, latents.kv, none, kept.q, kept.k, kept.v, kept.out, kept.lse, out});
  }
  return residual_sum(residual, std::move(y));
}

at::Tensor LatentAttention::backward(at::Tensor dy, Context& context, Tape& tape) {
  auto [x, q_input, kv_input, key, q, k, v, kept_out, lse, out] = tape.pop<10>();
  SavedCore kept{q, k, v, kept_out, lse};
  if (!out.defined()) {
    const CountAsRecomputed recomputed(context);
    Latents latents{q_input, kv_input, key};
    const Heads heads = project_up(latents, context);
    q_input = latents.q, kv_input = latents.kv;
    context.flops += core_flops(context, heads.q.size(0), heads.q.size(1));
    CoreOutput again = core_.forward(context, heads.q, heads.k, heads.v);
    out = std::move(again.out);
    kept = std::move(again.kept);
  }
  const std::int64_t batch = out.size(0), tokens = out.size(1), heads = core_.shape().num_heads;
  const std::int64_t nope = sizes_.qk_nope_head_dim;
  context.flops += 2 * core_flops(context, batch, tokens);
  const at::Tensor dout =
      project_.out.backward({.grad = std::move(dy)}, {.x = merge_heads(out)}, context, tape).grad.view(out.sizes());

  at::Tensor dkv = at::empty({batch, tokens, heads, nope + sizes_.v_head_dim}, out.options());
  CoreGradients gradients{at::empty({batch, tokens, heads, sizes_.qk_head_dim()}, out.options()),
                          at::empty({batch, tokens, heads, sizes_.qk_head_dim()}, out.options()),
                          dkv.narrow(3, nope, sizes_.v_head_dim)};
  core_.backward(context, gradients, dout, kept);
  kept = {};
  rotate_queries(gradients.q, context, /*inverse=*/true);
  dkv.narrow(3, 0, nope).copy_(gradients.k.narrow(3, 0, nope));
  // One key for all heads: its gradient is the sum over them, of all ranks.
  at::Tensor dkey = at::sum(gradients.k.narrow(3, nope, sizes_.qk_rope_head_dim), {2});
  rotate_key(dkey, context, /*inverse=*/true);
  if (parallel_->splits_sequence()) {
    dkey = reduce_scatter_tokens(dkey, *parallel_->tensor);
  } else if (parallel_->tensor_ranks() > 1) {
    sum_over(dkey, *parallel_->tensor);
  }

  at::Tensor dlatent = project_.kv_up.backward({.grad = merge_heads(dkv)}, {.x = kv_input}, context, tape).grad;
  dlatent = project_.kv_norm.backward(std::move(dlatent), context, tape);
  at::Tensor dx = project_.kv_down.backward({.grad = at::cat({dlatent, dkey}, 2)}, {.x = x}, context, tape).grad;
  at::Tensor dq = project_.q_up.backward({.grad = merge_heads(gradients.q)}, {.x = q_input}, context, tape).grad;
  if (project_.q_down) {
    dq = project_.q_down->norm.backward(std::move(dq), context, tape);
    dq = project_.q_down->linear.backward({.grad = std::move(dq)}, {.x = x}, context, tape).grad;
  }
  return dx.add_(dq);
}

}  // namespace trireme::nn
