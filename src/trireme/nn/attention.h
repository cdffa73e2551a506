// nn/attention.h -- projections, positions, the attention core and the output projection, as one layer.
//
// Queries, keys and values come from one fused projection ([queries | keys | values] rows of one weight) and stay views
// of its output. With grouped queries, several heads of queries share one of keys and values. Cross-attention takes its
// keys and values from a second input. Ranks of a parallel context have some of the heads, or some of the tokens
// (context_core.h).
// Depends on: base, comm, kernels.
#pragma once

#include <memory>
#include <optional>

#include "trireme/nn/attention_core.h"
#include "trireme/nn/embedding.h"
#include "trireme/nn/linear.h"
#include "trireme/nn/norm.h"
#include "trireme/nn/rotary.h"

namespace trireme::nn {

/// Per-head norms of queries and keys, after the projection and before positions.
struct QueryKeyNorm {
  Norm queries, keys;
};

class SelfAttention final : public ResidualLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  /// `rotary` is shared by the layers of a model, whose positions it holds; null without. `core`: how ranks that share
  /// rows attend; null: rows are whole.
  SelfAttention(AttentionShape shape, Linear qkv, Linear out, std::optional<QueryKeyNorm> norms,
                std::shared_ptr<RotaryEmbedding> rotary, std::unique_ptr<ContextCore> core = nullptr);
  ResidualSum forward_add(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) override;
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

 private:
  struct Heads {
    at::Tensor q, k, v;  // views [batch, seq_len, heads, head_dim]
  };
  Heads split(const at::Tensor& qkv) const;
  void normalise(at::Tensor& qkv, Context& context, Tape* tape);
  void normalise_backward(at::Tensor& dqkv, Context& context, Tape& tape);
  void rotate(at::Tensor& qkv, const Context& context, bool inverse) const;

  AttentionCore core_;
  Linear qkv_, out_;
  std::optional<QueryKeyNorm> norms_;
  std::shared_ptr<RotaryEmbedding> rotary_;
};

/// Inputs (x, memory), outputs (y): queries from x, keys and values from memory, the encoder's output. Ranks that share
/// rows have some tokens of both.
class CrossAttention final : public Layer {
 public:
  /// `parallel` is borrowed.
  CrossAttention(AttentionShape shape, Linear q, Linear kv, Linear out,
                 const ParallelContext& parallel = single_rank());
  CrossAttention(AttentionShape shape, Linear q, Linear kv, Linear out, ParallelContext&& parallel) = delete;
  Tensors forward(Tensors inputs, Context& context, Tape* tape) override;
  Tensors backward(Tensors gradients, Context& context, Tape& tape) override;

 private:
  /// Neighbouring queries of this rank, and where they stand.
  struct QueryRange {
    std::int64_t at = 0;
    TokenRange queries;
    BlockPlace place;
  };
  std::vector<QueryRange> query_ranges(const Context& context, std::int64_t queries) const;
  double flops(const Context& context, const at::Tensor& q, const at::Tensor& rows) const;
  /// Keys and values of whole rows, [batch, tokens, 2 kv_heads, head_dim].
  at::Tensor rows_of(const at::Tensor& kv) const;

  AttentionShape shape_;
  Linear q_, kv_, out_;
  const ParallelContext* parallel_;
};

}  // namespace trireme::nn
