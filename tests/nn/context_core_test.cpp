// Rows that ranks share against rows of one rank: the three ways and their combination.
#include "trireme/nn/context_core.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "trireme/comm/rank.h"

namespace trireme::nn {
namespace {

struct Variant {
  const char* name;
  int outer, inner;
  bool zigzag;
  spec::ContextKind kind;
};

TokenSplit split_of(const Variant& way, int rank) {
  return {.outer = way.outer,
          .outer_rank = rank / way.inner,
          .inner = way.inner,
          .inner_rank = rank % way.inner,
          .zigzag = way.zigzag};
}

/// Rows of packed documents of uneven lengths.
at::Tensor packed(std::int64_t batch, std::int64_t length) {
  at::Tensor documents = at::empty({batch, length}, at::kInt);
  auto* numbers = documents.data_ptr<std::int32_t>();
  for (std::int64_t row = 0; row < batch; ++row) {
    for (std::int64_t i = 0; i < length; ++i) {
      numbers[row * length + i] = static_cast<std::int32_t>(i < 5 + row ? 0 : i < 14 - row ? 1 : 2);
    }
  }
  return documents;
}

TEST(TokenSplit, SharesOutEveryColumnOnce) {
  for (const bool zigzag : {false, true}) {
    for (const int outer : {1, 2, 4}) {
      for (const int inner : {1, 2}) {
        std::vector<int> seen(32, 0);
        for (int rank = 0; rank < outer * inner; ++rank) {
          const TokenSplit split{outer, rank / inner, inner, rank % inner, zigzag};
          std::int64_t count = 0;
          for (const TokenRange& stretch : split.mine(32)) {
            for (std::int64_t i = 0; i < stretch.count; ++i) ++seen[static_cast<std::size_t>(stretch.first + i)];
            count += stretch.count;
          }
          EXPECT_EQ(count, 32 / outer / inner);
        }
        for (const int times : seen) EXPECT_EQ(times, 1);
      }
    }
  }
}

/// Under a causal mask, zig-zag ranks see equally many pairs of tokens; neighbouring stretches do not.
TEST(TokenSplit, ZigzagBalancesACausalMask) {
  const auto pairs = [](const TokenSplit& split) {
    std::int64_t sum = 0;
    for (const TokenRange& stretch : split.mine(64)) {
      for (std::int64_t i = 0; i < stretch.count; ++i) sum += stretch.first + i + 1;
    }
    return sum;
  };
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(pairs({.outer = 4, .outer_rank = rank, .zigzag = true}), pairs({.outer = 4, .zigzag = true}));
    EXPECT_GT(pairs({.outer = 4, .outer_rank = rank}), pairs({.outer = 4}));
  }
}

TEST(ContextCore, EqualsWholeRows) {
  constexpr std::int64_t kBatch = 2, kLength = 24, kSize = 8;
  using spec::ContextKind;
  const Variant ways[] = {{"gather", 4, 1, false, ContextKind::kGather},
                          {"gather, zig-zag", 4, 1, true, ContextKind::kGather},
                          {"ring", 4, 1, true, ContextKind::kRing},
                          {"plain ring", 3, 1, false, ContextKind::kRing},
                          {"ulysses", 1, 4, false, ContextKind::kUlysses},
                          {"both", 2, 2, true, ContextKind::kRing},
                          {"both, gathered", 2, 2, false, ContextKind::kGather}};
  for (const Variant& way : ways) {
    for (const std::int64_t num_kv_heads : {4, 2, 1}) {
      for (const auto& [causal, window, documents, dropout] : {std::tuple{true, 0, false, 0.0},
                                                               {true, 0, true, 0.0},
                                                               {true, 5, false, 0.0},
                                                               {false, 0, true, 0.0},
                                                               {false, 4, false, 0.0},
                                                               {true, 0, true, 0.3}}) {
        const AttentionShape shape{.name = "test",
                                   .num_heads = 4,
                                   .num_kv_heads = num_kv_heads,
                                   .head_dim = kSize,
                                   .causal = causal,
                                   .window = window,
                                   .dropout = dropout};
        Context context;
        context.training = true;
        context.samples = at::arange(kBatch, at::kLong) + 7;
        Sequence sequence;
        if (documents) sequence.documents = packed(kBatch, kLength);
        const auto draw = [&](std::int64_t heads) { return at::randn({kBatch, kLength, heads, kSize}, at::kDouble); };
        const at::Tensor q = draw(4), k = draw(num_kv_heads), v = draw(num_kv_heads), dout = draw(4);
        const BlockPlace place = place_in_rows(sequence, kLength, {0, kLength}, {0, kLength});
        const CoreResult whole = forward_block(shape, place, context, q, k, v);
        CoreGradients expected{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
        backward_block(shape, place, context, expected, dout, q, k, v, whole);
        comm::run_ranks(way.outer * way.inner, [&](comm::Rank& rank) {
          ParallelContext parallel;
          parallel.tokens = split_of(way, rank.rank());
          parallel.context = way.kind;
          const auto ring = rank.world().split(parallel.tokens.inner_rank, rank.rank(), "ring");
          const auto heads = rank.world().split(parallel.tokens.outer_rank, rank.rank(), "heads");
          parallel.ring = ring.get();
          parallel.heads = heads.get();
          const auto core = make_context_core(parallel);
          const TokenRanges mine = parallel.tokens.mine(kLength);
          const CoreCall call{shape, sequence, context};
          const CoreOutput output =
              core->forward(call, take_tokens(q, mine), take_tokens(k, mine), take_tokens(v, mine));
          EXPECT_TRUE(at::allclose(output.out, take_tokens(whole.out, mine), 1e-10, 1e-12)) << way.name;
          CoreGradients found{at::empty_like(take_tokens(q, mine)), at::empty_like(take_tokens(k, mine)),
                              at::empty_like(take_tokens(v, mine))};
          core->backward(call, found, take_tokens(dout, mine), output.kept);
          EXPECT_TRUE(at::allclose(found.q, take_tokens(expected.q, mine), 1e-10, 1e-12)) << way.name << " dq";
          EXPECT_TRUE(at::allclose(found.k, take_tokens(expected.k, mine), 1e-10, 1e-12)) << way.name << " dk";
          EXPECT_TRUE(at::allclose(found.v, take_tokens(expected.v, mine), 1e-10, 1e-12)) << way.name << " dv";
        });
      }
    }
  }
}

/// Parts of a block layout, in blocks of its own and in ones that parts cut it into.
TEST(ContextCore, EqualsWholeRowsOfBlockSparseAttention) {
  constexpr std::int64_t kBatch = 2, kSize = 8;
  using spec::ContextKind;
  const Variant ways[] = {
      {"gather", 4, 1, false, ContextKind::kGather},   {"gather, zig-zag", 2, 1, true, ContextKind::kGather},
      {"ring", 4, 1, true, ContextKind::kRing},        {"plain ring", 3, 1, false, ContextKind::kRing},
      {"ulysses", 1, 4, false, ContextKind::kUlysses}, {"both", 2, 2, true, ContextKind::kRing}};
  const auto layout_of = [](spec::SparseMode mode) {
    spec::SparseAttention sparse = spec::sparse_defaults(mode);
    sparse.block = 32;
    sparse.different_layout_per_head = true;
    sparse.num_local_blocks = 2;
    if (mode == spec::SparseMode::kBigBird) sparse.num_sliding_window_blocks = 1, sparse.num_random_blocks = 1;
    return sparse;
  };
  for (const Variant& way : ways) {
    for (const std::int64_t part : {16, 32, 80}) {
      for (const auto& [mode, causal, documents] : {std::tuple{spec::SparseMode::kFixed, true, false},
                                                    {spec::SparseMode::kBigBird, true, true},
                                                    {spec::SparseMode::kBigBird, false, false}}) {
        const std::int64_t length = part * way.outer * (way.zigzag ? 2 : 1);
        const AttentionShape shape{
            .name = "test",
            .num_heads = 4,
            .num_kv_heads = 2,
            .head_dim = kSize,
            .causal = causal,
            .sparse = std::make_shared<SparseLayouts>(layout_of(mode), /*heads=*/4, causal, length)};
        Context context;
        Sequence sequence;
        if (documents) sequence.documents = packed(kBatch, length);
        const auto draw = [&](std::int64_t heads) { return at::randn({kBatch, length, heads, kSize}, at::kDouble); };
        const at::Tensor q = draw(4), k = draw(2), v = draw(2), dout = draw(4);
        const BlockPlace place = place_in_rows(sequence, length, {0, length}, {0, length});
        const CoreResult whole = forward_block(shape, place, context, q, k, v);
        CoreGradients expected{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
        backward_block(shape, place, context, expected, dout, q, k, v, whole);
        comm::run_ranks(way.outer * way.inner, [&](comm::Rank& rank) {
          ParallelContext parallel;
          parallel.tokens = split_of(way, rank.rank());
          parallel.context = way.kind;
          const auto ring = rank.world().split(parallel.tokens.inner_rank, rank.rank(), "ring");
          const auto heads = rank.world().split(parallel.tokens.outer_rank, rank.rank(), "heads");
          parallel.ring = ring.get();
          parallel.heads = heads.get();
          const auto core = make_context_core(parallel);
          const TokenRanges mine = parallel.tokens.mine(length);
          const CoreCall call{shape, sequence, context};
          const CoreOutput output =
              core->forward(call, take_tokens(q, mine), take_tokens(k, mine), take_tokens(v, mine));
          EXPECT_TRUE(at::allclose(output.out, take_tokens(whole.out, mine), 1e-10, 1e-12)) << way.name << " " << part;
          CoreGradients found{at::empty_like(take_tokens(q, mine)), at::empty_like(take_tokens(k, mine)),
                              at::empty_like(take_tokens(v, mine))};
          core->backward(call, found, take_tokens(dout, mine), output.kept);
          EXPECT_TRUE(at::allclose(found.q, take_tokens(expected.q, mine), 1e-10, 1e-12)) << way.name << " dq " << part;
          EXPECT_TRUE(at::allclose(found.k, take_tokens(expected.k, mine), 1e-10, 1e-12)) << way.name << " dk " << part;
          EXPECT_TRUE(at::allclose(found.v, take_tokens(expected.v, mine), 1e-10, 1e-12)) << way.name << " dv " << part;
        });
      }
    }
  }
}

}  // namespace
}  // namespace trireme::nn
