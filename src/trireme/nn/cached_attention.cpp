#include "trireme/nn/cached_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/kv_codes.h"
#include "trireme/kernels/paged_attention.h"
#include "trireme/nn/flops.h"

namespace trireme::nn {
namespace {

struct EntrySize {
  std::int64_t heads = 1, size = 1;
  std::int64_t scale_part = 1;  ///< of FP8 codes
  bool values = true;           ///< beside keys; false: entries are both
};

KvCache::Layer& layer_of(const KvBatch& batch, const AttentionShape& shape, const EntrySize& entry,
                         const at::TensorOptions& options) {
  std::vector<KvCache::Layer>& layers = batch.cache->layers;
  const auto number = static_cast<std::size_t>(shape.cache_layer);
  if (layers.size() <= number) layers.resize(number + 1);
  KvCache::Layer& layer = layers[number];
  if (layer.keys.defined()) return layer;
  const bool codes = batch.cache->type == KvCacheType::kE4m3;
  const std::int64_t blocks = batch.group(shape.window).num_blocks;
  layer.keys = at::empty({blocks, kKvBlockSize, entry.heads, entry.size}, codes ? options.dtype(at::kByte) : options);
  if (codes)
    layer.key_scales =
        at::empty({blocks, kKvBlockSize, entry.heads, entry.size / entry.scale_part}, options.dtype(at::kFloat));
  if (!entry.values) return layer;
  layer.values = at::empty(layer.keys.sizes(), layer.keys.options());
  if (codes) layer.value_scales = at::empty(layer.key_scales.sizes(), layer.key_scales.options());
  return layer;
}

void write_on_cpu(at::Tensor& blocks, const at::Tensor& slots, const at::Tensor& fresh) {
  blocks.view({-1, blocks.size(2), blocks.size(3)}).index_copy_(0, slots, fresh);
}
void write_codes(at::Tensor& codes, at::Tensor& scales, const at::Tensor& slots, const at::Tensor& fresh) {
  const kernels::KvCodes made = kernels::to_kv_codes(fresh, codes.size(3) / scales.size(3));
  write_on_cpu(codes, slots, made.codes);
  write_on_cpu(scales, slots, made.scales);
}
/// k and v [tokens, heads, size]; v and values may be undefined.
void write_tokens(KvCache::Layer& layer, const at::Tensor& slots, const at::Tensor& k, const at::Tensor& v) {
  if (layer.key_scales.defined()) {
    TRIREME_CHECK(k.is_cpu(), "a KV cache of FP8 codes on {}", k.device().str());
    write_codes(layer.keys, layer.key_scales, slots, k);
    if (v.defined()) write_codes(layer.values, layer.value_scales, slots, v);
    return;
  }
  if (k.is_cuda()) return kernels::write_paged(layer.keys, layer.values, k, v, slots);
  write_on_cpu(layer.keys, slots, k);
  if (v.defined()) write_on_cpu(layer.values, slots, v);
}

struct Gathered {
  at::Tensor keys, values;  ///< [1, tokens, kv heads, head size]
  std::int64_t first = 0;   ///< position of the first token
};

/// The tokens that a sequence's queries see, in order, as numbers of this type.
Gathered gather_blocks(const KvCache::Layer& layer, const KvBatch::SequenceRows& sequence, std::int64_t window,
                       std::span<const BlockId> table, at::ScalarType type) {
  const std::int64_t seen = window > 0 ? std::max<std::int64_t>(0, sequence.context_len - window + 1) : 0;
  const std::int64_t begin = seen / kKvBlockSize, length = sequence.context_len + sequence.query_len;
  const std::int64_t count = blocks_for(length) - begin;
  at::Tensor ids = at::empty({count}, at::kInt);
  std::copy_n(table.begin() + begin, count, ids.mutable_data_ptr<std::int32_t>());
  ids = ids.to(layer.keys.device());
  const auto tokens = [&](const at::Tensor& blocks) {
    return blocks.index_select(0, ids)
        .view({1, count * kKvBlockSize, blocks.size(2), blocks.size(3)})
        .narrow(1, 0, length - begin * kKvBlockSize);
  };
  const auto numbers = [&](const at::Tensor& blocks, const at::Tensor& scales) {
    if (!blocks.defined() || !scales.defined()) return blocks.defined() ? tokens(blocks) : blocks;
    return kernels::from_kv_codes({.codes = tokens(blocks), .scales = tokens(scales)}, type);
  };
  return {numbers(layer.keys, layer.key_scales), numbers(layer.values, layer.value_scales), begin * kKvBlockSize};
}

/// A chunk of many queries: the tiled kernel over the keys in order.
at::Tensor attend_tiled(const AttentionShape& shape, const Context& context, const KvBatch::SequenceRows& sequence,
                        const at::Tensor& q, const Gathered& seen) {
  return forward_block(shape, {.query = sequence.context_len, .key = seen.first}, context,
                       q.narrow(1, sequence.first_row, sequence.query_len), seen.keys, seen.values)
      .out;
}

double pairs_of(const AttentionShape& shape, const KvBatch::SequenceRows& sequence) {
  if (shape.sparse != nullptr)
    return shape.sparse->growing_pairs(sequence.context_len, sequence.query_len, shape.first_head, shape.num_heads);
  return visible_pairs({shape.causal, shape.window}, {.first = sequence.context_len, .count = sequence.query_len},
                       {.count = sequence.context_len + sequence.query_len}, /*batch=*/1);
}

double flops_of(const AttentionShape& shape, const KvBatch& batch) {
  double pairs = 0;
  for (const KvBatch::SequenceRows& sequence : batch.sequences) pairs += pairs_of(shape, sequence);
  return 4 * pairs * static_cast<double>(shape.num_heads * shape.head_dim);
}

}  // namespace

bool reads_in_place(const at::Tensor& q, const KvBatch::SequenceRows& sequence, const Context& context) {
  return sequence.query_len <= kMostPagedQueries || (q.is_cpu() && batch_invariant(context));
}

at::Tensor attend_cached(const AttentionShape& shape, Context& context, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v) {
  const KvBatch& batch = *context.kv_batch;
  TRIREME_CHECK(shape.causal && !context.training, "a KV cache is for causal attention in inference");
  TRIREME_CHECK(q.size(0) == 1 && q.size(1) == batch.tokens, "[{}, {}] tokens came for a batch of [1, {}]", q.size(0),
                q.size(1), batch.tokens);
  if (shape.sparse != nullptr && q.is_cuda())
    throw ConfigError("block-sparse attention (model.sparse_attention) reads a KV cache on the CPU alone",
                      "generate and serve on the CPU (--device cpu)");
  const KvBatch::Group& group = batch.group(shape.window);
  KvCache::Layer& layer = layer_of(batch, shape, {shape.num_kv_heads, shape.head_dim, shape.head_dim}, q.options());
  write_tokens(layer, group.slots, k.squeeze(0), v.squeeze(0));
  context.flops += flops_of(shape, batch);

  at::Tensor out = at::empty(q.sizes(), q.options());
  std::vector<kernels::PagedSequence> in_place;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const KvBatch::SequenceRows& sequence = batch.sequences[i];
    const std::vector<BlockId>& table = group.block_tables[i];
    if (shape.sparse != nullptr || reads_in_place(q, sequence, context)) {
      in_place.push_back({sequence.first_row, sequence.query_len, sequence.context_len, table});
      continue;
    }
    const auto own = [&](const at::Tensor& all) { return all.narrow(1, sequence.first_row, sequence.query_len); };
    // The first chunk of a prompt sees itself alone, which is in order already.
    const Gathered seen = sequence.context_len == 0
                              ? Gathered{own(k), own(v), 0}
                              : gather_blocks(layer, sequence, shape.window, table, q.scalar_type());
    at::Tensor chunk = attend_tiled(shape, context, sequence, q, seen);
    if (batch.sequences.size() == 1) return chunk;
    own(out).copy_(chunk);
  }
  if (in_place.empty()) return out;
  at::Tensor rows = out.squeeze(0);
  kernels::PagedAttention options{.scale = score_scale(shape), .window = shape.window};
  options.key_scales = layer.key_scales;
  options.value_scales = layer.value_scales;
  if (shape.sparse != nullptr) {
    std::int64_t longest = 0;
    for (const KvBatch::SequenceRows& sequence : batch.sequences)
      longest = std::max(longest, sequence.context_len + sequence.query_len);
    options.blocks = &shape.sparse->growing(longest);
    options.first_layout_head = shape.first_head;
  }
  if (q.is_cuda()) {
    kernels::paged_attention(rows, q.squeeze(0), layer.keys, layer.values,
                             kernels::PagedRows{group.tables, batch.row_sequences, batch.row_lengths}, options);
  } else {
    kernels::paged_attention(rows, q.squeeze(0), layer.keys, layer.values, in_place, options);
  }
  return out;
}

LatentCache::LatentCache(const AttentionShape& shape, Context& context, const at::Tensor& entries,
                         std::int64_t scale_part)
    : shape_(shape),
      context_(context),
      group_(context.kv_batch->group(shape.window)),
      layer_(layer_of(*context.kv_batch, shape, {.size = entries.size(2), .scale_part = scale_part, .values = false},
                      entries.options())),
      type_(entries.scalar_type()) {
  write_tokens(layer_, group_.slots, entries.squeeze(0).unsqueeze(1), at::Tensor());
}

LatentCache::Entries LatentCache::gather(std::size_t sequence) const {
  const Gathered seen = gather_blocks(layer_, context_.kv_batch->sequences[sequence], shape_.window,
                                      group_.block_tables[sequence], type_);
  return {seen.keys.squeeze(2), seen.first};
}

at::Tensor LatentCache::attend_in_place(const at::Tensor& q, std::span<const std::size_t> sequences) const {
  std::vector<kernels::PagedSequence> rows;
  std::int64_t first_row = 0;
  double pairs = 0;
  for (const std::size_t i : sequences) {
    const KvBatch::SequenceRows& sequence = context_.kv_batch->sequences[i];
    rows.push_back({first_row, sequence.query_len, sequence.context_len, group_.block_tables[i]});
    first_row += sequence.query_len;
    pairs += pairs_of(shape_, sequence);
  }
  context_.flops += 4 * pairs * static_cast<double>(q.size(1) * q.size(2));
  at::Tensor out = at::empty(q.sizes(), q.options());
  kernels::paged_attention(out, q, layer_.keys, layer_.keys, rows,
                           {.scale = score_scale(shape_),
                            .window = shape_.window,
                            .key_scales = layer_.key_scales,
                            .value_scales = layer_.key_scales});
  return out;
}

}  // namespace trireme::nn
