#include "trireme/nn/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max.h>

#include "trireme/base/error.h"
#include "trireme/kernels/rotary.h"
#include "trireme/nn/cached_attention.h"
#include "trireme/nn/flops.h"

namespace trireme::nn {
namespace {

/// Whole rows of queries and of keys.
BlockPlace place_of(const Sequence& queries, const Sequence& keys) {
  return {.query_documents = queries.documents, .key_documents = keys.documents};
}
TokenSpan all_tokens(const Sequence& sequence, std::int64_t length) {
  return {.count = length, .documents = documents_on_host(sequence)};
}

/// Scores and weighted values of one pass, in the heads of q: 4 operations a pair and number of a head.
double block_flops(const AttentionShape& shape, const at::Tensor& q, const TokenSpan& queries, const TokenSpan& keys) {
  const double pairs = visible_pairs({shape.causal, shape.window}, queries, keys, q.size(0));
  return 4 * pairs * static_cast<double>(q.size(2) * q.size(3));
}

at::Tensor merge_heads(const at::Tensor& out) { return out.view({out.size(0), out.size(1), -1}); }

}  // namespace

SelfAttention::SelfAttention(AttentionShape shape, Linear qkv, Linear out, std::optional<QueryKeyNorm> norms,
                             std::shared_ptr<RotaryTable> rotary, std::unique_ptr<ContextCore> core)
    : shape_(std::move(shape)),
      qkv_(qkv),
      out_(out),
      norms_(std::move(norms)),
      rotary_(std::move(rotary)),
      core_(std::move(core)) {}

SelfAttention::Heads SelfAttention::split(const at::Tensor& qkv) const {
  const at::Tensor heads = qkv.view({qkv.size(0), qkv.size(1), -1, shape_.head_dim});
  return {heads.narrow(2, 0, shape_.num_heads), heads.narrow(2, shape_.num_heads, shape_.num_kv_heads),
          heads.narrow(2, shape_.num_heads + shape_.num_kv_heads, shape_.num_kv_heads)};
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
  const Sequence& sequence = sequence_of(context, shape_.stream);
  const at::Tensor& positions = sequence.positions;
  const std::int64_t count =
      sequence.position_count > 0 ? sequence.position_count : at::max(positions).item<std::int64_t>() + 1;
  const auto& [cosines, sines] = rotary_->tables(count, qkv.options());
  // Queries and keys lie side by side and are rotated alike.
  at::Tensor queries_and_keys =
      qkv.view({qkv.size(0), qkv.size(1), -1, shape_.head_dim}).narrow(2, 0, shape_.num_heads + shape_.num_kv_heads);
  kernels::rotary_(queries_and_keys, cosines, sines, positions, kernels::RotaryPairs::kHalves, inverse);
}

double SelfAttention::core_flops(const Sequence& sequence, const at::Tensor& q) const {
  if (!core_) {
    const TokenSpan rows = all_tokens(sequence, q.size(1));
    return block_flops(shape_, q, rows, rows);
  }
  // Column by column: shared rows are cut into stretches, and queries of one see keys of all.
  const at::Tensor documents = documents_on_host(sequence);
  const at::Tensor columns = sequence.columns.contiguous();
  const auto* at = columns.const_data_ptr<std::int64_t>();
  double flops = 0;
  for (std::int64_t begin = 0; begin < q.size(1);) {
    std::int64_t end = begin + 1;
    while (end < q.size(1) && at[end] == at[end - 1] + 1) ++end;
    TokenSpan queries{.first = at[begin], .count = end - begin}, keys{.count = sequence.row_length};
    if (documents.defined()) {
      queries.documents = documents.narrow(1, at[begin], end - begin);
      keys.documents = documents;
    }
    flops += block_flops(shape_, q, queries, keys);
    begin = end;
  }
  return flops;
}

CoreOutput SelfAttention::forward_core(const Sequence& sequence, const Context& context, const Heads& heads) {
  if (core_) return core_->forward({shape_, sequence, context}, heads.q, heads.k, heads.v);
  auto [out, lse] = forward_block(shape_, place_of(sequence, sequence), context, heads.q, heads.k, heads.v);
  return {out, {heads.q, heads.k, heads.v, out, std::move(lse)}};
}

void SelfAttention::backward_core(const Sequence& sequence, const Context& context, CoreGradients& gradients,
                                  const at::Tensor& dout, const SavedCore& kept) {
  if (core_) return core_->backward({shape_, sequence, context}, gradients, dout, kept);
  backward_block(shape_, place_of(sequence, sequence), context, gradients, dout, kept.q, kept.k, kept.v,
                 {kept.out, kept.lse});
}

ResidualSum SelfAttention::forward_add(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) {
  const Sequence& sequence = sequence_of(context, shape_.stream);
  LinearOutput projected = qkv_.forward({.x = std::move(x)}, {}, context);
  at::Tensor qkv = std::move(projected.y);
  normalise(qkv, context, tape);
  rotate(qkv, context, /*inverse=*/false);
  const Heads heads = split(qkv);
  if (context.kv_batch != nullptr) {
    TRIREME_CHECK(tape == nullptr && core_ == nullptr,
                  "a KV cache is for inference, by ranks that have whole sequences");
    const at::Tensor out = attend_cached(shape_, context, heads.q, heads.k, heads.v);
    return residual_sum(residual, out_.forward({.x = merge_heads(out)}, {.residual = residual}, context));
  }
  context.flops += core_flops(sequence, heads.q);
  auto [out, kept] = forward_core(sequence, context, heads);
  LinearOutput y = out_.forward({.x = merge_heads(out)}, {.residual = residual}, context);
  if (tape) {
    const at::Tensor none;
    tape->push(
        shape_.recompute_core
            ? Tensors{std::move(projected.saved_input), heads.q, heads.k, heads.v, none, none, none}
            : Tensors{std::move(projected.saved_input), kept.q, kept.k, kept.v, kept.out, kept.lse, std::move(out)});
  }
  return residual_sum(residual, std::move(y));
}

at::Tensor SelfAttention::backward(at::Tensor dy, Context& context, Tape& tape) {
  const Sequence& sequence = sequence_of(context, shape_.stream);
  auto [x, q, k, v, kept_out, lse, out] = tape.pop<7>();
  SavedCore kept{std::move(q), std::move(k), std::move(v), std::move(kept_out), std::move(lse)};
  if (!out.defined()) {
    const double flops = core_flops(sequence, kept.q);
    context.recomputed_flops += flops;
    CoreOutput again = forward_core(sequence, context, {kept.q, kept.k, kept.v});
    out = std::move(again.out);
    kept = std::move(again.kept);
  }
  context.flops += 2 * core_flops(sequence, out);
  const at::Tensor dout =
      out_.backward({.grad = std::move(dy)}, {.x = merge_heads(out)}, context, tape).grad.view(out.sizes());
  at::Tensor dqkv = at::empty(
      {out.size(0), out.size(1), (shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim}, out.options());
  const Heads parts = split(dqkv);
  CoreGradients gradients{parts.q, parts.k, parts.v};
  backward_core(sequence, context, gradients, dout, kept);
  rotate(dqkv, context, /*inverse=*/true);
  normalise_backward(dqkv, context, tape);
  return qkv_.backward({.grad = std::move(dqkv)}, {.x = std::move(x)}, context, tape).grad;
}

CrossAttention::CrossAttention(AttentionShape shape, Linear q, Linear kv, Linear out)
    : shape_(std::move(shape)), q_(q), kv_(kv), out_(out) {}

Tensors CrossAttention::forward(Tensors inputs, Context& context, Tape* tape) {
  TRIREME_CHECK(inputs.size() == 2, "cross-attention takes an input and a memory, not {} tensors", inputs.size());
  const auto by_heads = [&](const at::Tensor& wide, std::int64_t heads) {
    return wide.view({wide.size(0), wide.size(1), heads, shape_.head_dim});
  };
  LinearOutput from_x = q_.forward({.x = inputs[0]}, {}, context);
  LinearOutput from_memory = kv_.forward({.x = inputs[1]}, {}, context);
  const at::Tensor q = by_heads(from_x.y, shape_.num_heads);
  const at::Tensor kv = by_heads(from_memory.y, 2 * shape_.num_kv_heads);
  context.flops +=
      block_flops(shape_, q, all_tokens(context.sequence, q.size(1)), all_tokens(context.source, kv.size(1)));
  const auto [out, lse] =
      forward_block(shape_, place_of(context.sequence, context.source), context, q,
                    kv.narrow(2, 0, shape_.num_kv_heads), kv.narrow(2, shape_.num_kv_heads, shape_.num_kv_heads));
  at::Tensor y = out_.forward({.x = merge_heads(out)}, {}, context).y;
  if (tape) tape->push({std::move(from_x.saved_input), std::move(from_memory.saved_input), q, kv, out, lse});
  return {std::move(y)};
}

Tensors CrossAttention::backward(Tensors gradients, Context& context, Tape& tape) {
  const auto [x, memory, q, kv, out, lse] = tape.pop<6>();
  context.flops +=
      2 * block_flops(shape_, q, all_tokens(context.sequence, q.size(1)), all_tokens(context.source, kv.size(1)));
  const at::Tensor dout =
      out_.backward({.grad = gradients[0]}, {.x = merge_heads(out)}, context, tape).grad.view(out.sizes());
  at::Tensor dq = at::empty_like(q), dkv = at::empty_like(kv);
  CoreGradients parts{dq, dkv.narrow(2, 0, shape_.num_kv_heads),
                      dkv.narrow(2, shape_.num_kv_heads, shape_.num_kv_heads)};
  backward_block(shape_, place_of(context.sequence, context.source), context, parts, dout, q,
                 kv.narrow(2, 0, shape_.num_kv_heads), kv.narrow(2, shape_.num_kv_heads, shape_.num_kv_heads),
                 {out, lse});
  at::Tensor dx = q_.backward({.grad = merge_heads(dq)}, {.x = x}, context, tape).grad;
  at::Tensor dmemory = kv_.backward({.grad = merge_heads(dkv)}, {.x = memory}, context, tape).grad;
  return {std::move(dx), std::move(dmemory)};
}

}  // namespace trireme::nn
