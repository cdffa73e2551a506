// nn/latent_attention.h -- multi-head latent attention (MLA; DeepSeek-V2, 2405.04434, section 2.1).
//
// Queries, keys and values come from narrow latents, each normalised: q = up(norm(down(x))), [k | v] of each head =
// up(norm(latent)). Positions are in a part of their own: qk_rope_head_dim numbers of each query head, and one key of
// as many that all heads share. So a token's cache is its latent and that key, whatever the number of heads.
//
// Two forms of the same weights. Plain: keys and values of all heads are made, as training and long prefill chunks do.
// Absorbed: the up-projection of keys is multiplied into the query, that of values into the output, and heads attend to
// the latents themselves, as decode does (latent_decode.cpp).
//
// Tensor parallelism splits heads: down-projections and norms are replicated, up-projections split by columns, the
// output by rows. With sequence parallelism latents are split by tokens, and the latents are gathered, not x.
// Depends on: base, comm, kernels.
#pragma once

#include <memory>
#include <optional>

#include "trireme/nn/attention_core.h"
#include "trireme/nn/linear.h"
#include "trireme/nn/norm.h"
#include "trireme/nn/rotary.h"

namespace trireme::nn {

/// Of one head, and of the latent that keys and values come from.
struct LatentSizes {
  std::int64_t kv_lora_rank = 0;      ///< of the latent
  std::int64_t qk_nope_head_dim = 0;  ///< of queries and keys, without positions
  std::int64_t qk_rope_head_dim = 0;  ///< of queries and of the shared key, with them
  std::int64_t v_head_dim = 0;
  std::int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
};

/// Outputs of up-projections are whole heads one after the other: [nope | rope] of queries, [key nope | value].
struct LatentProjections {
  /// From x to the queries' latent; unset: queries come from x (q_lora_rank 0).
  struct Down {
    Linear linear;
    Norm norm;
  };
  std::optional<Down> q_down;
  Linear q_up;
  Linear kv_down;  ///< from x to [latent | shared key]
  Norm kv_norm;    ///< of the latent
  Linear kv_up;
  Linear out;
};

class LatentAttention final : public ResidualLayer {
 public:
  using UnaryLayer::backward, UnaryLayer::forward;
  /// `shape` has this rank's heads, as many of keys as of queries, of LatentSizes::qk_head_dim(). `rotary` rotates
  /// qk_rope_head_dim numbers, neighbours as pairs. `core` as SelfAttention's. `parallel` is borrowed.
  LatentAttention(AttentionShape shape, LatentSizes sizes, LatentProjections projections,
                  std::shared_ptr<RotaryEmbedding> rotary, std::unique_ptr<ContextCore> core = nullptr,
                  const ParallelContext& parallel = single_rank());
  ResidualSum forward_add(const at::Tensor& residual, at::Tensor x, Context& context, Tape* tape) override;
  at::Tensor backward(at::Tensor dy, Context& context, Tape& tape) override;

 private:
  /// What enters the up-projections, as they save it, and the shared key of whole rows, rotated: [batch, tokens, rope].
  struct Latents {
    at::Tensor q, kv, key;
  };
  struct Heads {
    at::Tensor q, k, v;  // [batch, tokens, heads, size]
  };
  /// Latents of this rank's tokens between pairs of matrices, normalised; the shared key of all tokens of its rows.
  Latents project_down(const at::Tensor& x, Context& context, Tape* tape);
  at::Tensor project_queries(Latents& latents, Context& context) const;
  Heads project_up(Latents& latents, Context& context) const;
  Heads expand(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& key) const;
  void rotate_queries(at::Tensor& q, const Context& context, bool inverse) const;
  void rotate_key(at::Tensor& key, const Context& context, bool inverse) const;
  double core_flops(const Context& context, std::int64_t batch, std::int64_t tokens) const;

  /// Over a KV cache, whose entries are a token's latent and shared key: [1, tokens, heads, value size].
  at::Tensor attend_latents(Latents& latents, Context& context) const;
  at::Tensor attend_plain(const at::Tensor& q, const at::Tensor& entries, std::int64_t position,
                          Context& context) const;
  at::Tensor absorb_queries(const at::Tensor& q, Context& context) const;
  at::Tensor absorb_values(const at::Tensor& weighted, Context& context) const;

  AttentionCore core_;
  LatentSizes sizes_;
  LatentProjections project_;
  std::shared_ptr<RotaryEmbedding> rotary_;
  const ParallelContext* parallel_;
};

}  // namespace trireme::nn
