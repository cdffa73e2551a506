// nn/attention_block.h -- one call of the attention kernel: queries and keys that are neighbours in their rows.
//
// Depends on: base, kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trireme/nn/context.h"
#include "trireme/nn/parallel_context.h"
#include "trireme/nn/sparse_layouts.h"

namespace trireme::nn {

class RelativeBias;

struct AttentionShape {
  std::string name;                                            ///< for dropout
  std::int64_t num_heads = 1, num_kv_heads = 1, head_dim = 1;  ///< that this rank computes with
  std::int64_t first_head = 0;                                 ///< of the model's, where ranks split them
  bool causal = true;
  std::int64_t window = 0;
  std::optional<double> scale = {};  ///< of scores; unset: 1 / sqrt(head_dim)
  double dropout = 0;                ///< of probabilities
  int cache_layer = 0;               ///< where its keys and values lie in a cache
  bool recompute_core = false;  ///< keep the projections only; run the core again in backward (Korthikanti et al. 2022)
  bool deterministic = false;   ///< GPU: backward adds up in a fixed order
  Stream stream = Stream::kSequence;
  std::shared_ptr<SparseLayouts> sparse = nullptr;   ///< block-sparse; shared by the layers of a model. Null: dense
  std::shared_ptr<RelativeBias> relative = nullptr;  ///< of scores (T5); shared by the layers of a stack. Null: none
};

double score_scale(const AttentionShape& shape);

/// Where a block's tokens stand: its first query and key, and the documents of exactly these tokens, or undefined.
struct BlockPlace {
  std::int64_t query = 0, key = 0;
  std::int64_t row = 0;  ///< tokens of the row; 0: these are all
  at::Tensor query_documents = {}, key_documents = {};
};
/// Of a stretch of whole rows' queries and one of their keys.
BlockPlace place_in_rows(const Sequence& sequence, std::int64_t row, const TokenRange& queries, const TokenRange& keys);

struct CoreResult {
  at::Tensor out, lse;  ///< [batch, queries, heads, value size]; float (double) [batch, heads, queries]
};
/// Heads of v may be narrower than those of q and k.
CoreResult forward_block(const AttentionShape& shape, const BlockPlace& place, const Context& context,
                         const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

struct CoreGradients {
  at::Tensor q, k, v;  ///< written, any strides
};
/// `result` may be over more keys than these: then the gradients are those of this block.
void backward_block(const AttentionShape& shape, const BlockPlace& place, const Context& context,
                    CoreGradients& gradients, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v, const CoreResult& result);

/// Whether a query of the one stretch of a row sees a key of the other, documents aside.
bool sees(const AttentionShape& shape, std::int64_t row, const TokenRange& queries, const TokenRange& keys);

}  // namespace trireme::nn
