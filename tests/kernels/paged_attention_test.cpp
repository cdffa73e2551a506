// Attention over a paged KV cache, beside attention over keys in order.
#include "trireme/kernels/paged_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <numeric>

#include "tests/kernels/support.h"
#include "trireme/kernels/attention.h"
#include "trireme/kernels/sparse/block_layout.h"

namespace trireme::kernels {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kBlockSize = 16;

struct Shape {
  std::int64_t heads, kv_heads, head_dim, window;
};
const std::vector<Shape> kShapes = {{1, 1, 8, 0},  {4, 4, 6, 0},  {4, 2, 33, 0},
                                    {8, 1, 64, 0}, {4, 2, 16, 5}, {2, 1, 24, 40}};

/// Sequences of several lengths in blocks that lie in no order.
struct Cache {
  struct Sequence {
    std::int64_t length;
    std::vector<std::int32_t> table;
    at::Tensor q, k, v;  // [1, length, heads, head_dim]
  };
  std::vector<Sequence> sequences;
  at::Tensor keys, values;

  Cache(const Shape& shape, at::ScalarType type, const std::vector<std::int64_t>& lengths, std::uint64_t order = 5) {
    std::int64_t blocks = 3;  // that belong to nobody
    for (const std::int64_t length : lengths) blocks += (length + kBlockSize - 1) / kBlockSize;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks));
    std::iota(ids.begin(), ids.end(), 0);
    const Random random(order, "order");
    for (std::size_t i = ids.size(); i-- > 1;) std::swap(ids[i], ids[random.below(i + 1, i)]);
    keys = at::full({blocks, kBlockSize, shape.kv_heads, shape.head_dim}, 9, at::TensorOptions(type));
    values = at::full_like(keys, -9);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const std::int64_t length = lengths[i];
      const auto draw = [&](const char* what, std::int64_t heads) {
        return normal_tensor({1, length, heads, shape.head_dim}, type, fmt::format("{} {}", what, i));
      };
      Sequence& sequence = sequences.emplace_back();
      sequence = {length, {}, draw("q", shape.heads), draw("k", shape.kv_heads), draw("v", shape.kv_heads)};
      for (std::int64_t at = 0; at < length; ++at) {
        if (at % kBlockSize == 0) sequence.table.push_back(ids.back()), ids.pop_back();
        keys[sequence.table.back()][at % kBlockSize].copy_(sequence.k[0][at]);
        values[sequence.table.back()][at % kBlockSize].copy_(sequence.v[0][at]);
      }
    }
  }

  /// The last `counts[i]` queries of each sequence, in one call.
  at::Tensor attend(const Shape& shape, const std::vector<std::int64_t>& counts) const {
    std::vector<at::Tensor> rows;
    std::vector<PagedSequence> parts;
    std::int64_t first = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Sequence& sequence = sequences[i];
      if (counts[i] == 0) continue;
      rows.push_back(sequence.q[0].narrow(0, sequence.length - counts[i], counts[i]));
      parts.push_back({first, counts[i], sequence.length - counts[i], sequence.table});
      first += counts[i];
    }
    const at::Tensor q = at::cat(rows);
    at::Tensor out = at::empty_like(q);
    paged_attention(out, q, keys, values, parts, options(shape));
    return out;
  }

  static PagedAttention options(const Shape& shape) {
    return {.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim)), .window = shape.window};
  }
};

TEST(PagedAttention, IsAttentionOverTheKeysInOrder) {
  for_every_type_and_set([&](const Precision& precision) {
    for (const Shape& shape : kShapes) {
      const std::vector<std::int64_t> lengths{1, 15, 16, 17, 70}, counts{1, 3, 1, 2, 8};
      const Cache cache(shape, precision.type, lengths);
      const at::Tensor out = cache.attend(shape, counts);
      std::int64_t row = 0;
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        const Cache::Sequence& sequence = cache.sequences[i];
        const Attention options{.scale = Cache::options(shape).scale, .causal = true, .window = shape.window};
        const auto whole = attention_forward(sequence.q.to(at::kDouble), sequence.k.to(at::kDouble),
                                             sequence.v.to(at::kDouble), options);
        expect_near(out.narrow(0, row, counts[i]), whole.out[0].narrow(0, lengths[i] - counts[i], counts[i]),
                    precision.relative, std::max(precision.absolute, 4e-6), "out");
        row += counts[i];
      }
    }
  });
}

/// Each head and row of blocks: its own block, and some of those before.
BlockLists some_lists(std::int64_t heads, std::int64_t block, std::int64_t tokens, bool by_head) {
  BlockLists lists{.tokens = tokens, .block = block, .heads = heads, .begin = {0}, .columns = {}};
  const Random random(3, "lists");
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t row = 0; row < lists.rows(); ++row) {
      for (std::int64_t column = 0; column <= row; ++column) {
        const std::int64_t draw = ((by_head ? head : 0) * 100 + row) * 100 + column;
        if (column == row || random.uniform(static_cast<std::uint64_t>(draw)) < 0.4)
          lists.columns.push_back(static_cast<std::int32_t>(column));
      }
      lists.begin.push_back(static_cast<std::int64_t>(lists.columns.size()));
    }
  }
  return lists;
}

TEST(PagedAttention, OfBlocksIsBlockSparseAttentionOverTheKeysInOrder) {
  for_every_type_and_set([&](const Precision& precision) {
    for (const Shape& shape : kShapes) {
      if (shape.window > 0) continue;
      for (const std::int64_t block : {16, 48}) {
        for (const bool by_head : {false, true}) {
          constexpr std::int64_t kLength = 90;  // the last block is cut
          const Cache cache(shape, precision.type, {kLength});
          const Cache::Sequence& sequence = cache.sequences[0];
          // Of a part of a model's heads, as ranks have them.
          const BlockLists lists = some_lists(shape.heads + 1, block, kLength, by_head);
          const BlockLayout layout{BlockLists(lists)};
          const auto whole = attention_forward(
              sequence.q.to(at::kDouble), sequence.k.to(at::kDouble), sequence.v.to(at::kDouble),
              {.scale = Cache::options(shape).scale, .causal = true, .blocks = &layout, .first_layout_head = 1});
          PagedAttention options = Cache::options(shape);
          options.blocks = &lists;
          options.first_layout_head = 1;
          // A chunk in the middle, single queries on both sides of a block's border, and the end.
          for (const auto& [first, count] :
               {std::pair<std::int64_t, std::int64_t>{0, 5}, {40, 20}, {47, 1}, {48, 1}, {85, 5}}) {
            const at::Tensor q = sequence.q[0].narrow(0, first, count);
            at::Tensor out = at::empty_like(q);
            paged_attention(out, q, cache.keys, cache.values,
                            std::vector<PagedSequence>{{0, count, first, sequence.table}}, options);
            expect_near(out, whole.out[0].narrow(0, first, count), precision.relative,
                        std::max(precision.absolute, 4e-6), fmt::format("blocks of {} at {}", block, first).c_str());
          }
        }
      }
    }
  });
}

TEST(PagedAttention, AllBlocksGiveTheBitsOfNone) {
  for (const Shape& shape : kShapes) {
    if (shape.window > 0) continue;
    const Cache cache(shape, at::kFloat, {70});
    BlockLists lists{.tokens = 128, .block = 32, .heads = shape.heads, .begin = {0}, .columns = {}};
    for (std::int64_t row = 0; row < shape.heads * 4; ++row) {
      for (std::int32_t column = 0; column < 4; ++column) lists.columns.push_back(column);
      lists.begin.push_back(static_cast<std::int64_t>(lists.columns.size()));
    }
    const at::Tensor q = cache.sequences[0].q[0].narrow(0, 62, 8);
    at::Tensor out = at::empty_like(q);
    PagedAttention options = Cache::options(shape);
    options.blocks = &lists;
    paged_attention(out, q, cache.keys, cache.values, std::vector<PagedSequence>{{0, 8, 62, cache.sequences[0].table}},
                    options);
    EXPECT_TRUE(same_bits(out, cache.attend(shape, {8}))) << shape.heads;
  }
}

TEST(PagedAttention, RefusesListsThatDoNotFit) {
  const Shape shape{4, 2, 8, 0};
  const Cache cache(shape, at::kFloat, {20});
  const auto refused = [&](const BlockLists& lists, std::int64_t window, const char* reason) {
    const at::Tensor q = cache.sequences[0].q[0].narrow(0, 19, 1);
    at::Tensor out = at::empty_like(q);
    try {
      paged_attention(out, q, cache.keys, cache.values,
                      std::vector<PagedSequence>{{0, 1, 19, cache.sequences[0].table}},
                      {.window = window, .blocks = &lists});
      FAIL() << reason;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(reason));
    }
  };
  refused(some_lists(4, 16, 19, false), 0, "rows of 19");
  refused(some_lists(3, 16, 32, false), 0, "of 3 heads");
  refused(some_lists(4, 24, 48, false), 0, "blocks of 24 tokens");
  refused(some_lists(4, 16, 32, false), 5, "not both");
}

TEST(PagedAttention, AQuerysBitsDependOnItsSequenceAlone) {
  for_every_type_and_set([&](const Precision& precision) {
    for (const Shape& shape : kShapes) {
      const std::vector<std::int64_t> lengths{33, 5, 70};
      const Cache cache(shape, precision.type, lengths);
      const at::Tensor together = cache.attend(shape, {8, 5, 6});
      EXPECT_TRUE(same_bits(together.narrow(0, 0, 8), cache.attend(shape, {8, 0, 0}))) << "neighbours";
      EXPECT_TRUE(same_bits(together.narrow(0, 13, 6), cache.attend(shape, {0, 0, 6}))) << "neighbours";
      EXPECT_TRUE(same_bits(together.narrow(0, 7, 1), cache.attend(shape, {1, 0, 0}))) << "chunks";
      EXPECT_TRUE(same_bits(together, Cache(shape, precision.type, lengths, 6).attend(shape, {8, 5, 6}))) << "blocks";
      const Threads more(3);
      EXPECT_TRUE(same_bits(together, cache.attend(shape, {8, 5, 6}))) << "threads";
    }
  });
}

TEST(PagedAttention, TakesViewsOfAFusedProjectionAndLeavesOtherRowsAlone) {
  const Shape shape{4, 2, 8, 0};
  const Cache cache(shape, at::kFloat, {20});
  const Cache::Sequence& sequence = cache.sequences[0];
  const at::Tensor fused = at::full({6, 8, 8}, 3, at::kFloat);
  fused.narrow(0, 2, 3).narrow(1, 0, 4).copy_(sequence.q[0].narrow(0, 17, 3));
  at::Tensor out = at::full({6, 4, 8}, 7, at::kFloat);
  const std::vector<PagedSequence> parts{{2, 3, 17, sequence.table}};
  paged_attention(out, fused.narrow(1, 0, 4), cache.keys, cache.values, parts, Cache::options(shape));
  EXPECT_TRUE(at::equal(out.narrow(0, 2, 3), cache.attend(shape, {3})));
  EXPECT_TRUE(out.narrow(0, 0, 2).eq(7).all().item<bool>());
  EXPECT_TRUE(out.narrow(0, 5, 1).eq(7).all().item<bool>());
}

TEST(PagedAttention, RefusesWhatWouldReadBesideTheCache) {
  const Shape shape{4, 2, 8, 0};
  const Cache cache(shape, at::kFloat, {20});
  const at::Tensor q = at::zeros({1, 4, 8}, at::kFloat);
  const auto refused = [&](const std::vector<PagedSequence>& parts, const at::Tensor& queries, const char* reason) {
    at::Tensor out = at::empty_like(queries);
    try {
      paged_attention(out, queries, cache.keys, cache.values, parts, Cache::options(shape));
      ADD_FAILURE() << "was taken instead of: " << reason;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.message(), HasSubstr(reason));
    }
  };
  const std::vector<std::int32_t> table = cache.sequences[0].table, beside{table[0], 99}, freed{-1, table[1]};
  refused({{0, 1, 32, table}}, q, "a sequence of 33 tokens has block -1 in the place of its block 2");
  refused({{0, 1, 19, beside}}, q, "has block 99 in the place of its block 1");
  refused({{0, 1, 19, freed}}, q, "has block -1 in the place of its block 0");
  refused({{0, 2, 18, table}}, q, "rows 0 to 2");
  refused({{0, 1, 19, table}}, at::zeros({1, 3, 8}, at::kFloat), "whose heads divide");
  refused({{0, 1, 19, table}}, at::zeros({1, 4, 8}, at::kDouble), "different types");
}

}  // namespace
}  // namespace trireme::kernels
