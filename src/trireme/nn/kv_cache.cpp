#include "trireme/nn/kv_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/nn/param.h"

namespace trireme::nn {
namespace {

at::Tensor on_device(const std::vector<std::int64_t>& numbers, at::Device device) {
  at::Tensor here = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), here.mutable_data_ptr<std::int64_t>());
  return here.to(device);
}

at::Tensor ints_on_device(const std::vector<std::int32_t>& numbers, at::Device device) {
  at::Tensor here = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kInt);
  std::copy(numbers.begin(), numbers.end(), here.mutable_data_ptr<std::int32_t>());
  return here.to(device);
}

/// Block tables side by side, as long as the longest.
at::Tensor tables_on_device(const std::vector<std::vector<BlockId>>& tables, at::Device device) {
  std::size_t most = 1;
  for (const auto& table : tables) most = std::max(most, table.size());
  at::Tensor here =
      at::full({static_cast<std::int64_t>(tables.size()), static_cast<std::int64_t>(most)}, kNoBlock, at::kInt);
  auto* to = here.mutable_data_ptr<std::int32_t>();
  for (const auto& table : tables) {
    std::copy(table.begin(), table.end(), to);
    to += most;
  }
  return here.to(device);
}

/// The most blocks that `tokens` neighbouring tokens can touch.
std::int64_t blocks_touched(std::int64_t tokens) { return blocks_for(tokens + kKvBlockSize - 1); }

/// The table of one group, checked: every block that the step reads or writes is there.
const BlockTable& table_of(const SequenceStep& step, std::size_t group, const KvCacheGroup& of, std::size_t sequence) {
  TRIREME_CHECK(group < step.tables.size(), "sequence {} has {} block tables, but the cache has more groups", sequence,
                step.tables.size());
  const BlockTable& table = step.tables[group];
  const std::int64_t length = step.context_len + step.query_len;
  const std::int64_t seen = of.window > 0 ? std::max<std::int64_t>(0, step.context_len - of.window + 1) : 0;
  TRIREME_CHECK(length <= table.capacity(), "sequence {} has {} tokens, but its block table has room for {}", sequence,
                length, table.capacity());
  TRIREME_CHECK(table.freed * kKvBlockSize <= seen, "sequence {} needs its tokens from {} on, but {} blocks are freed",
                sequence, seen, table.freed);
  for (std::int64_t block = seen / kKvBlockSize; block < blocks_for(length); ++block) {
    const BlockId id = table.blocks[static_cast<std::size_t>(block)];
    TRIREME_CHECK(id >= 0 && id < of.num_blocks, "sequence {} has block {} in a cache of {}", sequence, id,
                  of.num_blocks);
  }
  return table;
}

}  // namespace

std::vector<KvCacheGroup> kv_cache_groups(const spec::ModelShape& shape, const KvCacheSize& size) {
  std::vector<KvCacheGroup> groups;
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer) {
    const std::int64_t window = spec::window_of(shape, layer);
    if (std::ranges::find(groups, window, &KvCacheGroup::window) != groups.end()) continue;
    std::int64_t blocks = blocks_for(size.max_tokens);
    if (window > 0) blocks = std::min(blocks, blocks_touched(window - 1 + size.max_query_len));
    groups.push_back({.window = window, .num_blocks = blocks * size.sequences});
  }
  return groups;
}

std::int64_t latent_scale_part(std::int64_t kv_lora_rank, std::int64_t qk_rope_head_dim) {
  return std::gcd(kv_lora_rank, qk_rope_head_dim);
}

std::int64_t kv_bytes_per_token(const spec::ModelShape& shape, std::int64_t bytes_per_element, KvCacheType type) {
  const spec::Mla& mla = shape.mla;
  const std::int64_t entry = mla.used() ? mla.kv_lora_rank + mla.qk_rope_head_dim : shape.head_dim;
  const std::int64_t part = mla.used() ? latent_scale_part(mla.kv_lora_rank, mla.qk_rope_head_dim) : shape.head_dim;
  const std::int64_t entries = mla.used() ? 1 : 2 * shape.num_kv_heads;
  const bool codes = type == KvCacheType::kE4m3;
  const std::int64_t bytes =
      entries * (codes ? entry + entry / part * std::int64_t{sizeof(float)} : entry * bytes_per_element);
  std::int64_t total = 0;
  for (std::int64_t layer = 0; layer < shape.num_layers; ++layer)
    total += spec::window_of(shape, layer) > 0 ? 0 : bytes;
  return total;
}

const KvBatch::Group& KvBatch::group(std::int64_t window) const {
  const auto found = std::ranges::find(groups, window, &Group::window);
  TRIREME_CHECK(found != groups.end(), "the KV cache has no blocks for layers with a window of {}", window);
  return *found;
}

KvBatch make_kv_batch(KvCache& cache, std::span<const SequenceStep> sequences, at::Device device) {
  KvBatch batch{.cache = &cache, .device = device};
  std::vector<std::int64_t> last_rows;
  for (const SequenceStep& step : sequences) {
    TRIREME_CHECK(step.query_len > 0 && step.context_len >= 0, "sequence {} has {} new tokens after {}",
                  batch.sequences.size(), step.query_len, step.context_len);
    batch.sequences.push_back(
        {.first_row = batch.tokens, .query_len = step.query_len, .context_len = step.context_len});
    batch.tokens += step.query_len;
    last_rows.push_back(batch.tokens - 1);
  }
  batch.last_rows = on_device(last_rows, device);
  for (std::size_t number = 0; number < cache.groups.size(); ++number) {
    const KvCacheGroup& of = cache.groups[number];
    KvBatch::Group& group = batch.groups.emplace_back();
    group.window = of.window;
    group.num_blocks = of.num_blocks;
    std::vector<std::int64_t> slots;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const SequenceStep& step = sequences[i];
      const BlockTable& table = table_of(step, number, of, i);
      for (std::int64_t at = step.context_len; at < step.context_len + step.query_len; ++at) {
        slots.push_back(table.blocks[static_cast<std::size_t>(at / kKvBlockSize)] * kKvBlockSize + at % kKvBlockSize);
      }
      group.block_tables.push_back(table.blocks);
    }
    group.slots = on_device(slots, device);
    if (device.is_cuda()) group.tables = tables_on_device(group.block_tables, device);
  }
  if (device.is_cuda()) {
    std::vector<std::int32_t> of, lengths;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      for (std::int64_t at = 0; at < sequences[i].query_len; ++at) {
        of.push_back(static_cast<std::int32_t>(i));
        const bool in_place = sequences[i].query_len <= kMostPagedQueries;
        lengths.push_back(in_place ? static_cast<std::int32_t>(sequences[i].context_len + at + 1) : 0);
      }
    }
    batch.row_sequences = ints_on_device(of, device);
    batch.row_lengths = ints_on_device(lengths, device);
  }
  return batch;
}

const kernels::QuantisedWeight* quantised_of(const Context& context, const Param& weight) {
  if (context.kv_batch == nullptr || context.kv_batch->quantised == nullptr) return nullptr;
  const auto found = context.kv_batch->quantised->find(&weight);
  return found == context.kv_batch->quantised->end() ? nullptr : &found->second;
}

Sequence packed_sequence(const KvBatch& batch) {
  std::vector<std::int64_t> positions;
  std::int64_t most = 0;
  for (const KvBatch::SequenceRows& sequence : batch.sequences) {
    const std::int64_t end = sequence.context_len + sequence.query_len;
    for (std::int64_t at = sequence.context_len; at < end; ++at) positions.push_back(at);
    most = std::max(most, end);
  }
  return {.positions = on_device(positions, batch.device).unsqueeze(0), .position_count = most};
}

}  // namespace trireme::nn
