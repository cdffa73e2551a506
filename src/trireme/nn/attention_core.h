// nn/attention_core.h -- attention proper, between a layer's projections: queries, keys and values to outputs.
//
// Over whole rows it is one call of the kernel, over rows that ranks share it is the ranks' way (context_core.h). The
// layers around it, attention.h and latent_attention.h, save what it asks for and count what it computes.
// Depends on: base, comm, kernels.
#pragma once

#include <memory>

#include "trireme/nn/context_core.h"
#include "trireme/nn/flops.h"

namespace trireme::nn {

/// Scores and weighted values of one pass over (query, key) pairs, in so many heads of such sizes.
struct PairCost {
  std::int64_t heads = 0, qk_head_dim = 0, v_head_dim = 0;
  double flops(double pairs) const { return 2 * pairs * static_cast<double>(heads * (qk_head_dim + v_head_dim)); }
};
PairCost pair_cost(const at::Tensor& q, const at::Tensor& v);

/// Whole rows.
TokenSpan all_tokens(const Sequence& sequence, std::int64_t length);

/// [batch, tokens, heads, size] to [batch, tokens, heads * size], without a copy.
at::Tensor merge_heads(const at::Tensor& heads);

class AttentionCore {
 public:
  /// `context`: how ranks that share rows attend; null: rows are whole.
  AttentionCore(AttentionShape shape, std::unique_ptr<ContextCore> context);

  const AttentionShape& shape() const { return shape_; }
  bool shares_rows() const { return context_ != nullptr; }
  /// Of this rank's `tokens` queries a row, forward.
  double flops(const Context& context, std::int64_t batch, std::int64_t tokens, const PairCost& cost) const;
  /// q, k, v [batch, tokens, heads, size]; values may be narrower than keys.
  CoreOutput forward(Context& context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  void backward(Context& context, CoreGradients& gradients, const at::Tensor& dout, const SavedCore& kept) const;

 private:
  AttentionShape shape_;
  std::unique_ptr<ContextCore> context_;
};

}  // namespace trireme::nn
