// nn/cached_attention.h -- attention of an inference step: a ragged batch over a paged KV cache.
//
// Decode, and chunks of a few tokens, read the blocks where they lie (kernels/paged_attention.h, on the CPU). Longer
// chunks gather the blocks that their first query sees, which their own work outweighs, and run the tiled kernel.
// Depends on: kernels, nn/kv_cache.h.
#pragma once

#include "trireme/nn/attention_block.h"

namespace trireme::nn {

/// Chunks of at most so many tokens read the cache in place.
inline constexpr std::int64_t kMostPagedQueries = 8;

/// Writes the step's keys and values into the layer's blocks and attends to what they then hold. q, k, v and the result
/// are [1, tokens, heads, head size], tokens as context.kv_batch says.
at::Tensor attend_cached(const AttentionShape& shape, Context& context, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v);

}  // namespace trireme::nn
