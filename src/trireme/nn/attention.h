// nn/attention.h -- projections, positions, the attention core and the output projection, as one layer.
//
// Queries, keys and values come from one fused projection ([queries | keys | values] rows of one weight) and stay views
// of its output. With grouped queries, several heads of queries share one of keys and values. Cross-attention takes its
// keys and values from a second input.
// Depends on: base, kernels.
#pragma once

#include <memory>
#include <optional>

#include "trireme/nn/embedding.h"
#include "trireme/nn/linear.h"
#include "trireme/nn/norm.h"
#include "trireme/nn/rotary.h"

namespace trireme::nn {

struct AttentionShape {
  std::string name;  ///< for dropout
  std::int64_t heads = 1, kv_heads = 1, head_size = 1;
  bool causal = true;
  std::int64_t window = 0;
  double dropout = 0;           ///< of probabilities
  int cache_layer = 0;          ///< where its keys and values lie in a cache
  bool recompute_core = false;  ///< keep the projections only; run the core again in backward (Korthikanti et al. 2022)
  Stream stream = Stream::kSequence;
};

/// Per-head norms of queries and keys, after the projection and before positions.
struct QueryKeyNorm {
  Norm queries, keys;
};

class SelfAttention final : public UnaryLayer {
 public:
  /// `rotary` is shared by the layers of a model, whose positions it holds; null without.
  SelfAttention(AttentionShape shape, Linear qkv, Linear out, std::optional<QueryKeyNorm> norms,
                std::shared_ptr<RotaryTable> rotary);
  at::Tensor run(at::Tensor x, Context& context, Tape* tape) override;
  at::Tensor run_back(at::Tensor dy, Context& context, Tape& tape) override;

 private:
  struct Heads {
    at::Tensor q, k, v;  // views [batch, sequence, heads, head size]
  };
  Heads split(const at::Tensor& qkv) const;
  void normalise(at::Tensor& qkv, Context& context, Tape* tape);
  void normalise_back(at::Tensor& dqkv, Context& context, Tape& tape);
  void rotate(at::Tensor& qkv, const Context& context, bool inverse) const;
  KeyValueCache::Layer& cache_layer(KeyValueCache& cache, const at::Tensor& qkv) const;
  at::Tensor run_cached(const at::Tensor& qkv, Context& context) const;

  AttentionShape shape_;
  Linear qkv_, out_;
  std::optional<QueryKeyNorm> norms_;
  std::shared_ptr<RotaryTable> rotary_;
};

/// Inputs (x, memory), outputs (y): queries from x, keys and values from memory, the encoder's output.
class CrossAttention final : public Layer {
 public:
  CrossAttention(AttentionShape shape, Linear q, Linear kv, Linear out);
  Tensors forward(Tensors inputs, Context& context, Tape* tape) override;
  Tensors backward(Tensors gradients, Context& context, Tape& tape) override;

 private:
  AttentionShape shape_;
  Linear q_, kv_, out_;
};

}  // namespace trireme::nn
