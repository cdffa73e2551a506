// Layouts of block-sparse attention, beside those that DeepSpeed's own generator makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/spec/model_config.h"
#include "trireme/spec/recipe.h"
#include "trireme/spec/sparse_attention.h"

namespace trireme::spec {
namespace {

struct SparseCase {
  SparseAttention sparse;
  std::int64_t heads, blocks;
  bool causal;
  std::int64_t ones;   ///< blocks that are computed
  std::uint64_t hash;  ///< FNV-1a of the layout's zeros and ones, a byte each, by head, row and column
};

/// Made by deepspeed/ops/sparse_attention/sparsity_config.py of DeepSpeed 0.9.5; random blocks 0.
const std::vector<SparseCase>& deepspeed_layouts() {
  static const std::vector<SparseCase> cases = {
      {{.mode = SparseMode::kFixed}, 2, 1, false, 2, 0x82f2307b4e88e77U},
      {{.mode = SparseMode::kFixed}, 2, 3, false, 18, 0x4d7e75bb2e207047U},
      {{.mode = SparseMode::kFixed}, 2, 4, false, 32, 0x38df9853f4efb1c5U},
      {{.mode = SparseMode::kFixed}, 2, 9, false, 102, 0x7589717296707157U},
      {{.mode = SparseMode::kFixed}, 2, 16, false, 224, 0x14b9b9407ed5f25U},
      {{.mode = SparseMode::kFixed}, 2, 19, false, 298, 0x30d8e103fc81bd07U},
      {{.mode = SparseMode::kFixed, .different_layout_per_head = true, .num_different_global_patterns = 4},
       5,
       18,
       false,
       700,
       0x2a34f6e1b2013ec9U},
      {{.mode = SparseMode::kFixed,
        .different_layout_per_head = true,
        .num_local_blocks = 6,
        .num_global_blocks = 2,
        .num_different_global_patterns = 3},
       4,
       21,
       false,
       972,
       0x82bf5d58b1ce13d1U},
      {{.mode = SparseMode::kFixed, .num_local_blocks = 8, .num_global_blocks = 4},
       1,
       11,
       false,
       109,
       0x39e1ef96362087c0U},
      {{.mode = SparseMode::kVariable}, 2, 16, false, 152, 0xdaa257b3abeb5345U},
      {{.mode = SparseMode::kVariable, .local_window_blocks = {1, 2, 5}, .global_block_indices = {0, 6, 20}},
       1,
       17,
       false,
       99,
       0x8879acc256308922U},
      {{.mode = SparseMode::kVariable,
        .local_window_blocks = {3},
        .global_block_indices = {2, 9},
        .global_block_end_indices = {4, 15}},
       1,
       13,
       false,
       99,
       0x2f1690b28162b7d2U},
      {{.mode = SparseMode::kBigBird}, 2, 3, false, 18, 0x4d7e75bb2e207047U},
      {{.mode = SparseMode::kBigBird}, 2, 8, false, 68, 0x3e8ef3f4b18526fdU},
      {{.mode = SparseMode::kBigBird}, 2, 17, false, 158, 0x3e0e69da6d476af7U},
      {{.mode = SparseMode::kBigBird, .num_global_blocks = 3, .num_sliding_window_blocks = 6},
       1,
       15,
       false,
       153,
       0xca7240e6abdb95f4U},
      {{.mode = SparseMode::kLongformer}, 2, 3, false, 18, 0x4d7e75bb2e207047U},
      {{.mode = SparseMode::kLongformer}, 2, 8, false, 68, 0x3e8ef3f4b18526fdU},
      {{.mode = SparseMode::kLongformer}, 2, 17, false, 158, 0x3e0e69da6d476af7U},
      {{.mode = SparseMode::kLongformer, .num_sliding_window_blocks = 5, .global_block_indices = {1, 7}},
       1,
       14,
       false,
       100,
       0xab70f6723616c8fdU},
      {{.mode = SparseMode::kLongformer, .global_block_indices = {2, 9}, .global_block_end_indices = {5, 20}},
       1,
       14,
       false,
       174,
       0xaa65fd6a72e92263U},
      {{.mode = SparseMode::kFixed}, 2, 1, true, 2, 0x82f2307b4e88e77U},
      {{.mode = SparseMode::kFixed}, 2, 3, true, 12, 0xeaafc144c93b2e8dU},
      {{.mode = SparseMode::kFixed}, 2, 4, true, 20, 0xfa1de040bbd5d0b5U},
      {{.mode = SparseMode::kFixed}, 2, 9, true, 54, 0x5a1b4584bb0baebfU},
      {{.mode = SparseMode::kFixed}, 2, 16, true, 128, 0xcf4a6b4ead160275U},
      {{.mode = SparseMode::kFixed}, 2, 19, true, 164, 0x49ff89151041cc2dU},
      {{.mode = SparseMode::kFixed, .different_layout_per_head = true, .num_different_global_patterns = 4},
       5,
       18,
       true,
       375,
       0x4c7eb8b9cb5cf6a2U},
      {{.mode = SparseMode::kFixed,
        .different_layout_per_head = true,
        .num_local_blocks = 6,
        .num_global_blocks = 2,
        .num_different_global_patterns = 3},
       4,
       21,
       true,
       508,
       0xf5c3c862fd2c5375U},
      {{.mode = SparseMode::kFixed, .num_local_blocks = 8, .num_global_blocks = 4},
       1,
       11,
       true,
       66,
       0x434eacfd651edc53U},
      {{.mode = SparseMode::kVariable}, 2, 16, true, 104, 0x7d65f611010ad6fdU},
      {{.mode = SparseMode::kVariable, .local_window_blocks = {1, 2, 5}, .global_block_indices = {0, 6, 20}},
       1,
       17,
       true,
       69,
       0x244f42ade3a80976U},
      {{.mode = SparseMode::kVariable,
        .local_window_blocks = {3},
        .global_block_indices = {2, 9},
        .global_block_end_indices = {4, 15}},
       1,
       13,
       true,
       52,
       0x5480dc02dfc99f23U},
      {{.mode = SparseMode::kBigBird}, 2, 3, true, 12, 0xeaafc144c93b2e8dU},
      {{.mode = SparseMode::kBigBird}, 2, 8, true, 42, 0x9d86861d24384e25U},
      {{.mode = SparseMode::kBigBird}, 2, 17, true, 96, 0xe0b4cad2b278bf05U},
      {{.mode = SparseMode::kBigBird, .num_global_blocks = 3, .num_sliding_window_blocks = 6},
       1,
       15,
       true,
       84,
       0xeb040f53940f7127U},
      {{.mode = SparseMode::kLongformer}, 2, 3, true, 12, 0xeaafc144c93b2e8dU},
      {{.mode = SparseMode::kLongformer}, 2, 8, true, 42, 0x9d86861d24384e25U},
      {{.mode = SparseMode::kLongformer}, 2, 17, true, 96, 0xe0b4cad2b278bf05U},
      {{.mode = SparseMode::kLongformer, .num_sliding_window_blocks = 5, .global_block_indices = {1, 7}},
       1,
       14,
       true,
       57,
       0x5ce6f05ce30ad228U},
      {{.mode = SparseMode::kLongformer, .global_block_indices = {2, 9}, .global_block_end_indices = {5, 20}},
       1,
       14,
       true,
       94,
       0x6b404af50f9e07U},
      {{.mode = SparseMode::kFixed, .horizontal_global_attention = true}, 2, 10, false, 140, 0xc18cc3293175e6c5U},
      {{.mode = SparseMode::kVariable, .horizontal_global_attention = true, .global_block_indices = {0, 5}},
       1,
       10,
       false,
       58,
       0xeb781a778d8a6217U},
      {{.mode = SparseMode::kDense}, 2, 7, false, 98, 0xa2ab4d1500472557U},
  };
  return cases;
}

TEST(SparseAttention, LayoutsAreDeepSpeedsBitForBit) {
  for (const SparseCase& c : deepspeed_layouts()) {
    // The last block is cut, which changes no block.
    for (const std::int64_t tokens : {c.blocks * 16, c.blocks * 16 - 5}) {
      const SparseLists lists = sparse_lists(c.sparse, c.heads, tokens, c.causal);
      std::uint64_t hash = 0xcbf29ce484222325;
      std::int64_t ones = 0;
      for (std::int64_t head = 0; head < c.heads; ++head) {
        for (std::int64_t row = 0; row < c.blocks; ++row) {
          const auto columns = lists.columns_of(head, row);
          for (std::int64_t column = 0; column < c.blocks; ++column) {
            const bool has = std::binary_search(columns.begin(), columns.end(), static_cast<std::int32_t>(column));
            hash = (hash ^ (has ? 1U : 0U)) * 0x100000001b3;
            ones += has ? 1 : 0;
          }
        }
      }
      EXPECT_EQ(ones, c.ones) << static_cast<int>(c.sparse.mode) << " of " << c.blocks;
      EXPECT_EQ(hash, c.hash) << static_cast<int>(c.sparse.mode) << " of " << c.blocks;
    }
  }
}

TEST(SparseAttention, FixedIsTheTextbookPattern) {
  const SparseLists lists = sparse_lists(sparse_defaults(SparseMode::kFixed), 1, 8 * 16, true);
  const auto row = [&](std::int64_t number) {
    const auto columns = lists.columns_of(0, number);
    return std::vector<std::int32_t>(columns.begin(), columns.end());
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(row(2), ElementsAre(0, 1, 2));
  EXPECT_THAT(row(4), ElementsAre(3, 4));  // the last block of the window before, and its own
  EXPECT_THAT(row(7), ElementsAre(3, 4, 5, 6, 7));
}

TEST(SparseAttention, RandomBlocksAreDistinctAndAsManyAsAsked) {
  SparseAttention sparse = sparse_defaults(SparseMode::kBigBird);
  sparse.num_random_blocks = 4, sparse.num_sliding_window_blocks = 1, sparse.different_layout_per_head = true;
  const SparseLists lists = sparse_lists(sparse, 2, 40 * 16, true);
  bool differs = false;
  for (std::int64_t row = 0; row < 40; ++row) {
    const auto columns = lists.columns_of(0, row);
    EXPECT_LE(columns.size(), 6U);  // with the first and its own
    EXPECT_GE(columns.size(), std::min<std::size_t>(4, static_cast<std::size_t>(row) + 1));
    EXPECT_LE(columns.back(), row);
    const auto other = lists.columns_of(1, row);
    differs = differs || !std::equal(columns.begin(), columns.end(), other.begin(), other.end());
  }
  EXPECT_TRUE(differs);
}

TEST(SparseAttention, PairsAreCountedUnderTheMask) {
  const SparseLists all = sparse_lists({.mode = SparseMode::kDense}, 3, 37, true);
  EXPECT_DOUBLE_EQ(sparse_pairs(all, true), 37.0 * 38 / 2);
  EXPECT_DOUBLE_EQ(sparse_pairs(all, false), 37.0 * 37);
}

TEST(SparseAttention, ARecipeSaysItAndSavesItAgain) {
  const char* const text =
      "[model]\nfamily = \"llama\"\nhidden_size = 64\nnum_heads = 4\nnum_layers = 1\n[model.sparse_attention]\n"
      "mode = \"bigbird\"\nnum_random_blocks = 0\n";
  const Recipe recipe = load_recipe({.file = "x.toml", .text = text}).value;
  const auto shape = shape_of(recipe.model);
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->sparse_attention.mode, SparseMode::kBigBird);
  EXPECT_EQ(shape->sparse_attention.num_random_blocks, 0);
  EXPECT_EQ(*shape_of(config_of(*shape)), *shape);
  ModelConfig plain;
  plain.family = Family::kLlama;
  plain.sparse_attention.mode = SparseMode::kBigBird;
  EXPECT_EQ(shape_of(plain)->sparse_attention.num_random_blocks, 1);  // DeepSpeed's default
  plain.sparse_attention.mode = SparseMode::kFixed;
  plain.sparse_attention.num_global_blocks = 3;
  const auto problems = find_problems(plain);
  ASSERT_FALSE(problems.empty());
  EXPECT_EQ(problems[0].key, "model.sparse_attention.num_global_blocks");
}

}  // namespace
}  // namespace trireme::spec
