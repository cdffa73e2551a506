// nn/kv_cache.h -- keys and values of earlier tokens in paged blocks, and the ragged batch of an inference step.
//
//   KvCache cache{.groups = kv_cache_groups(shape, {.max_tokens = 4096, .max_query_len = 512})};
//   const KvBatch batch = make_kv_batch(cache, steps);    // any mix of prefill chunks and decode
//   context.kv_batch = &batch;
//   context.sequence = packed_sequence(batch);            // tokens of all sequences in one row, one after the other
//   model.next_logits(ids, context);                      // [sequences, vocabulary]
//
// Every layer but attention works token by token, so sequences of all lengths lie side by side without padding.
// Depends on: base, kernels, spec, nn/block_table.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "trireme/kernels/quantised_weight.h"
#include "trireme/nn/block_table.h"
#include "trireme/nn/context.h"
#include "trireme/spec/model_shape.h"

namespace trireme::nn {

/// What keys and values are kept as.
enum class KvCacheType : std::uint8_t {
  kSame,  ///< as the model computes
  kE4m3,  ///< FP8 codes with scales of each token's heads (kernels/kv_codes.h), on the CPU
};

struct KvCache {
  struct Layer {
    /// [num_blocks, kKvBlockSize, num_kv_heads, head_dim], of this rank's heads. Latent attention: keys are [..,
    /// 1, kv_lora_rank + qk_rope_head_dim], all that is cached of a token, and there are no values.
    at::Tensor keys, values;
    /// kE4m3: float [num_blocks, kKvBlockSize, num_kv_heads, parts].
    at::Tensor key_scales, value_scales;

    /// All of them, in this order; those that the model has no use for are undefined.
    std::array<at::Tensor*, 4> tensors() { return {&keys, &values, &key_scales, &value_scales}; }
  };
  std::vector<KvCacheGroup> groups;  ///< no two with the same window
  std::vector<Layer> layers = {};    ///< by AttentionShape::cache_layer, allocated by the first step
  KvCacheType type = KvCacheType::kSame;
};

/// kE4m3: so many neighbouring numbers of a latent's entry share a scale, as many as divide the latent and the rotated
/// key behind it. Of keys and values a head's do.
std::int64_t latent_scale_part(std::int64_t kv_lora_rank, std::int64_t qk_rope_head_dim);
/// Bytes of a token in the KV cache, over all layers that keep all tokens, on a rank that has all heads.
std::int64_t kv_bytes_per_token(const spec::ModelShape& shape, std::int64_t bytes_per_element, KvCacheType type);

struct KvCacheSize {
  std::int64_t max_tokens = 0;     ///< of a sequence
  std::int64_t max_query_len = 1;  ///< of a step: the largest prefill chunk
  std::int64_t sequences = 1;
};
/// One group for each window that layers of the model have, with blocks enough for so many sequences. A window's group
/// is bounded by the window and one chunk, however long sequences grow.
std::vector<KvCacheGroup> kv_cache_groups(const spec::ModelShape& shape, const KvCacheSize& size);

/// One sequence's part of a step.
struct SequenceStep {
  std::int64_t context_len = 0;             ///< its tokens in the cache before the step
  std::int64_t query_len = 0;               ///< its tokens in the step: a chunk of a prompt, or one
  std::span<const BlockTable> tables = {};  ///< by group of the cache, with room for both; read by make_kv_batch
};

/// Matrices in fewer bits, in place of their parameters' values: what linear layers of an inference step compute with.
using QuantisedWeights = std::map<const Param*, kernels::QuantisedWeight>;

struct KvBatch {
  struct SequenceRows {
    std::int64_t first_row = 0, query_len = 0, context_len = 0;
  };
  struct Group {
    std::int64_t window = 0, num_blocks = 0;
    std::vector<std::vector<BlockId>> block_tables;  ///< by sequence
    at::Tensor slots;   ///< int64 [tokens], on the device: block * kKvBlockSize + offset of each new token
    at::Tensor tables;  ///< GPU: `block_tables` as int32 [sequences, blocks], there
  };
  KvCache* cache = nullptr;  ///< borrowed
  at::Device device = at::kCPU;
  std::int64_t tokens = 0;  ///< of all sequences in this step
  std::vector<SequenceRows> sequences;
  std::vector<Group> groups;
  at::Tensor last_rows;  ///< int64 [sequences], on the device: each one's last token; undefined: every token
  /// GPU, int32 [tokens]: the sequence of each token that reads the cache in place, and how many it sees without a
  /// window; 0 for tokens of longer chunks and of padding.
  at::Tensor row_sequences, row_lengths;
  const QuantisedWeights* quantised = nullptr;  ///< borrowed; null: none
  at::Tensor* hidden = nullptr;  ///< borrowed: where what the head reads is left, [tokens, hidden]; null: nowhere
  /// CPU: a token's bits depend on its own sequence alone, not on what is in the batch beside it or how it was chunked.
  bool invariant = false;

  /// Of the layers with this window: an InternalError where the cache has none.
  const Group& group(std::int64_t window) const;
};

/// Chunks of at most so many tokens read the cache in place; on the CPU, with `invariant`, all of them.
inline constexpr std::int64_t kMostPagedQueries = 8;

/// An InternalError naming the sequence whose tables do not hold its tokens.
KvBatch make_kv_batch(KvCache& cache, std::span<const SequenceStep> sequences, at::Device device = at::kCPU);
/// What stands in place of a matrix's value; null: nothing.
const kernels::QuantisedWeight* quantised_of(const Context& context, const Param& weight);
inline bool batch_invariant(const Context& context) { return context.kv_batch && context.kv_batch->invariant; }
/// The positions of the batch's tokens, [1, tokens].
Sequence packed_sequence(const KvBatch& batch);

}  // namespace trireme::nn
