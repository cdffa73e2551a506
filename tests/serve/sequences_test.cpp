// Ragged batches over a paged KV cache: every sequence has the logits that it has alone, without a cache.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/nn/kv_cache.h"

namespace trireme::serve {
namespace {

using models::kCausalFixtures;

/// Several sequences that share one cache; blocks are handed out in whatever order they come back.
class Batch {
 public:
  Batch(models::Model& model, std::size_t sequences, const nn::KvCacheSize& size)
      : model_(model), cache_{.groups = nn::kv_cache_groups(model.shape, size)}, blocks_(cache_.groups) {
    for (std::size_t i = 0; i < sequences; ++i) running_.push_back({blocks_.new_tables()});
  }

  /// Leaves the free blocks in an order far from theirs.
  void shuffle_blocks() {
    std::vector<nn::BlockManager::Tables> held;
    while (true) {
      auto tables = blocks_.new_tables();
      if (!blocks_.reserve(tables, 1)) break;
      held.push_back(std::move(tables));
    }
    const Random random(4, "shuffle");
    for (std::size_t i = held.size(); i-- > 1;) std::swap(held[i], held[random.below(i + 1, i)]);
    for (auto& tables : held) blocks_.release(tables);
  }

  /// The next tokens of each sequence, perhaps none; logits of all of them, one after the other.
  at::Tensor take(const at::Tensor& ids, const std::vector<std::int64_t>& counts) {
    std::vector<nn::SequenceStep> steps;
    std::vector<at::Tensor> tokens;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      Running& one = running_[i];
      EXPECT_TRUE(blocks_.reserve(one.tables, one.length + counts[i])) << "sequence " << i;
      steps.push_back({one.length, counts[i], one.tables});
      tokens.push_back(ids[static_cast<std::int64_t>(i)].narrow(0, one.length, counts[i]));
    }
    const nn::KvBatch batch = nn::make_kv_batch(cache_, steps);
    nn::Context context;
    context.kv_batch = &batch;
    context.sequence = nn::packed_sequence(batch);
    const at::Tensor packed = at::cat(tokens).unsqueeze(0);
    last_ = model_.next_logits(packed, context);
    const at::Tensor logits = model_.forward({packed}, context, nullptr)[0];
    for (std::size_t i = 0; i < counts.size(); ++i) {
      running_[i].length += counts[i];
      blocks_.free_out_of_window(running_[i].tables, running_[i].length);
    }
    return logits;
  }

  std::int64_t length(std::size_t sequence) const { return running_[sequence].length; }
  const at::Tensor& last() const { return last_; }
  const nn::KvCache& cache() const { return cache_; }
  nn::BlockManager& blocks() { return blocks_; }
  void end(std::size_t sequence) {
    blocks_.release(running_[sequence].tables);
    running_[sequence].length = 0;
  }

 private:
  struct Running {
    nn::BlockManager::Tables tables;
    std::int64_t length = 0;
  };
  models::Model& model_;
  nn::KvCache cache_;
  nn::BlockManager blocks_;
  std::vector<Running> running_;
  at::Tensor last_;
};

/// Takes the steps and compares every logit with a forward pass over whole rows.
void expect_whole(Batch& batch, const at::Tensor& ids, const at::Tensor& whole,
                  const std::vector<std::vector<std::int64_t>>& steps, const std::string& what) {
  for (const auto& counts : steps) {
    std::vector<std::int64_t> before;
    for (std::size_t i = 0; i < counts.size(); ++i) before.push_back(batch.length(i));
    const at::Tensor logits = batch.take(ids, counts);
    std::int64_t row = 0, sequence = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      const at::Tensor expected = whole[static_cast<std::int64_t>(i)].narrow(0, before[i], counts[i]);
      EXPECT_LE(models::largest(logits.narrow(0, row, counts[i]), expected), 5e-5)
          << what << ": sequence " << i << " at " << before[i];
      EXPECT_LE(models::largest(batch.last()[sequence++], expected[counts[i] - 1]), 5e-5) << what << ", last token";
      row += counts[i];
    }
  }
}

TEST(Sequences, OfDifferentLengthsInOneBatchHaveTheLogitsOfEachAlone) {
  for (const std::string& name : kCausalFixtures) {
    const auto model = models::load_published(formats::HfDirectory(models::fixture(name)), {});
    const at::Tensor ids = models::some_ids(3, 40, model->shape.vocab_size);
    const at::Tensor whole = models::logits_of(*model, ids);
    Batch batch(*model, 3, {.max_tokens = 40, .max_query_len = 20, .sequences = 3});
    batch.shuffle_blocks();
    // Prefill beside decode, chunks on both sides of what is read in place, sequences that wait, and one alone.
    expect_whole(batch, ids, whole,
                 {{5, 0, 0}, {1, 17, 0}, {1, 1, 20}, {9, 1, 1}, {1, 0, 8}, {0, 20, 11}, {4, 1, 0}, {19, 0, 0}}, name);
  }
}

spec::ModelShape sparse_shape(const std::function<void(spec::SparseAttention&)>& change, spec::SparseMode mode) {
  spec::ModelShape shape = models::tiny_shape(spec::Family::kLlama);
  shape.max_seq_len = 112;
  shape.sparse_attention = spec::sparse_defaults(mode);
  change(shape.sparse_attention);
  return shape;
}

const std::vector<std::vector<std::int64_t>> kSparseSteps = {{5, 0},  {1, 60}, {1, 1}, {40, 1},
                                                             {1, 30}, {30, 8}, {22, 0}};

TEST(Sequences, OfBlockSparseModelsHaveTheLogitsOfEachAlone) {
  using spec::SparseMode;
  const std::vector<spec::ModelShape> shapes = {
      sparse_shape([](auto& s) { s.num_local_blocks = 2; }, SparseMode::kFixed),
      sparse_shape(
          [](auto& s) {
            s.num_local_blocks = 2, s.num_different_global_patterns = 2, s.different_layout_per_head = true;
          },
          SparseMode::kFixed),
      sparse_shape(
          [](auto& s) {
            s.local_window_blocks = {1, 2};
          },
          SparseMode::kVariable),
      sparse_shape([](auto& s) { s.different_layout_per_head = true; }, SparseMode::kBigBird),
      sparse_shape([](auto& s) { s.global_block_indices = {1}; }, SparseMode::kLongformer),
      sparse_shape([](auto& s) { s.block = 32; }, SparseMode::kLongformer)};
  for (const spec::ModelShape& shape : shapes) {
    const auto model = models::build(shape);
    models::fill(*model, nn::Precision::kFp32);
    const at::Tensor ids = models::some_ids(2, 100, shape.vocab_size);
    const at::Tensor whole = models::logits_of(*model, ids);
    Batch batch(*model, 2, {.max_tokens = 100, .max_query_len = 60, .sequences = 2});
    batch.shuffle_blocks();
    expect_whole(batch, ids, whole, kSparseSteps,
                 std::string(name_in(spec::enum_names(std::type_identity<SparseMode>()), shape.sparse_attention.mode)));
  }
}

/// The most tokens, below those of the longest row, whose places then have other blocks than in that one; 0: none. With
/// few blocks the draws of both may coincide.
std::int64_t length_of_another_layout(const spec::ModelShape& shape) {
  const spec::SparseAttention& sparse = shape.sparse_attention;
  const spec::SparseLists longest = spec::sparse_lists(sparse, shape.num_heads, shape.max_seq_len, true);
  for (std::int64_t tokens = shape.max_seq_len - sparse.block; tokens > 0; tokens -= sparse.block) {
    const spec::SparseLists lists = spec::sparse_lists(sparse, shape.num_heads, tokens, true);
    for (std::int64_t row = 0; row < lists.rows(); ++row) {
      // The causal mask hides blocks behind the row's own.
      const auto seen = [&](const spec::SparseLists& of) {
        std::vector<std::int32_t> columns;
        for (const std::int32_t column : of.columns_of(0, row)) {
          if (column <= row) columns.push_back(column);
        }
        return columns;
      };
      if (seen(lists) != seen(longest)) return tokens;
    }
  }
  return 0;
}

/// Random blocks of mode "variable" are drawn among all of a row: a growing sequence has those of the longest row.
TEST(Sequences, OfBlocksThatDependOnTheLengthAreTheBeginOfTheLongestRow) {
  const spec::ModelShape shape =
      sparse_shape([](auto& s) { s.num_random_blocks = 2, s.local_window_blocks = {1}; }, spec::SparseMode::kVariable);
  const auto model = models::build(shape);
  models::fill(*model, nn::Precision::kFp32);
  const at::Tensor ids = models::some_ids(2, shape.max_seq_len, shape.vocab_size);
  const at::Tensor whole = models::logits_of(*model, ids);
  Batch batch(*model, 2, {.max_tokens = 100, .max_query_len = 60, .sequences = 2});
  expect_whole(batch, ids, whole, kSparseSteps, "variable");
  // Sequences laid out by their own lengths would have failed above.
  const std::int64_t tokens = length_of_another_layout(shape);
  ASSERT_GT(tokens, 0) << "all lengths have the same blocks: nothing was tested";
  const at::Tensor shorter = models::logits_of(*model, ids.narrow(1, 0, tokens).contiguous());
  EXPECT_GT(models::largest(shorter, whole.narrow(1, 0, tokens)), 1e-3);
}

TEST(Sequences, ThatEndLeaveTheirBlocksToOthers) {
  const auto model = models::load_published(formats::HfDirectory(models::fixture("llama")), {});
  const at::Tensor ids = models::some_ids(2, 40, model->shape.vocab_size);
  const at::Tensor whole = models::logits_of(*model, ids);
  Batch batch(*model, 2, {.max_tokens = 40, .sequences = 1});  // three blocks: both do not fit
  expect_whole(batch, ids, whole, {{40, 0}}, "first");
  batch.end(0);
  expect_whole(batch, ids, whole, {{0, 12}, {0, 1}, {0, 27}}, "second");
  batch.end(1);
  EXPECT_EQ(batch.blocks().allocator(0).num_free(), 3);
}

TEST(Sequences, OfAWindowHoldNoMoreThanItAndAChunkHoweverLongTheyGrow) {
  for (const std::string name : {"mistral", "qwen2_window"}) {
    const auto model = models::load_published(formats::HfDirectory(models::fixture(name)), {});
    const at::Tensor ids = models::some_ids(2, 64, model->shape.vocab_size);
    const at::Tensor whole = models::logits_of(*model, ids);
    for (const std::vector<std::int64_t>& pieces : std::vector<std::vector<std::int64_t>>{
             std::vector<std::int64_t>(64, 1), std::vector<std::int64_t>(16, 4), {64}, {3, 20, 1, 40}, {7, 5, 5, 47}}) {
      const nn::KvCacheSize size{.max_tokens = 64, .max_query_len = *std::ranges::max_element(pieces), .sequences = 2};
      Batch batch(*model, 2, size);
      std::vector<std::vector<std::int64_t>> steps;
      for (const std::int64_t piece : pieces) steps.push_back({piece, piece});
      expect_whole(batch, ids, whole, steps, name);
      for (std::int64_t layer = 0; layer < model->shape.num_layers; ++layer) {
        const std::int64_t window = spec::window_of(model->shape, layer);
        const std::int64_t held = batch.cache().layers.at(static_cast<std::size_t>(layer)).keys.size(0) / 2;
        EXPECT_LE(held, 4);
        const std::int64_t needed = window > 0 ? window + size.max_query_len : size.max_tokens;
        EXPECT_LE((held - 2) * nn::kKvBlockSize, needed) << name;
      }
    }
  }
}

TEST(Sequences, WhoseTablesDoNotHoldThemAreNamed) {
  const auto model = models::load_published(formats::HfDirectory(models::fixture("llama")), {});
  nn::KvCache cache{.groups = nn::kv_cache_groups(model->shape, {.max_tokens = 32})};
  nn::BlockManager blocks(cache.groups);
  auto tables = blocks.new_tables();
  ASSERT_TRUE(blocks.reserve(tables, 16));
  const auto refused = [&](const nn::SequenceStep& step) {
    EXPECT_THROW(nn::make_kv_batch(cache, {&step, 1}), InternalError);
  };
  refused({.context_len = 16, .query_len = 1, .tables = tables});
  refused({.context_len = 0, .query_len = 0, .tables = tables});
  refused({.context_len = 0, .query_len = 1, .tables = {}});
  const nn::SequenceStep fits{.context_len = 15, .query_len = 1, .tables = tables};
  EXPECT_EQ(nn::make_kv_batch(cache, {&fits, 1}).tokens, 1);
}

}  // namespace
}  // namespace trireme::serve
