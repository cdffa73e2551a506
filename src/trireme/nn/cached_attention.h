// nn/cached_attention.h -- attention of an inference step: a ragged batch over a paged KV cache.
//
// Decode, and chunks of a few tokens, read the blocks where they lie (kernels/paged_attention.h). Longer chunks gather
// the blocks that their first query sees, which their own work outweighs, and run the tiled kernel. On a GPU a step of
// decode alone asks the host for nothing, so that it can be captured in a CUDA graph; latents are gathered there.
// Block-sparse attention reads its blocks in place, whatever the chunk, on the CPU.
// Depends on: kernels, nn/kv_cache.h.
#pragma once

#include <span>

#include "trireme/nn/attention_block.h"
#include "trireme/nn/kv_cache.h"

namespace trireme::nn {

/// Whether a sequence's queries read the cache in place: few of them; all where a query's bits must not depend on how
/// its prompt is cut into chunks.
bool reads_in_place(const at::Tensor& q, const KvBatch::SequenceRows& sequence, const Context& context);

/// Writes the step's keys and values into the layer's blocks and attends to what they then hold. q, k, v and the result
/// are [1, tokens, heads, head size], tokens as context.kv_batch says.
at::Tensor attend_cached(const AttentionShape& shape, Context& context, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v);

/// A layer's part of the cache in one step, where a token's entry is key and value of all heads at once: latents.
class LatentCache {
 public:
  /// Writes the step's entries, [1, tokens, size]; in a cache of FP8 codes `scale_part` of their numbers share a scale.
  /// The context is borrowed.
  LatentCache(const AttentionShape& shape, Context& context, const at::Tensor& entries, std::int64_t scale_part);
  struct Entries {
    at::Tensor entries;      ///< [1, tokens, size], in order
    std::int64_t first = 0;  ///< position of the first
  };
  /// What the queries of a sequence see.
  Entries gather(std::size_t sequence) const;
  /// Attention to the entries where they lie. q [rows, heads, size] has the rows of these sequences one after the
  /// other; what comes back are the weighted entries, as large. CPU.
  at::Tensor attend_in_place(const at::Tensor& q, std::span<const std::size_t> sequences) const;

 private:
  const AttentionShape& shape_;
  Context& context_;
  const KvBatch::Group& group_;
  KvCache::Layer& layer_;
  at::ScalarType type_;  // that the model computes in
};

}  // namespace trireme::nn
