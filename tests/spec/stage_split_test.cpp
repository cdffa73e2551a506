#include "trireme/spec/stage_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::spec {
namespace {

ModelShape llama(std::int64_t layers) {
  ModelShape shape = family_shape(Family::kLlama);
  shape.num_layers = layers;
  return shape;
}

std::vector<int> layers_of(const std::vector<ChunkShare>& shares) {
  std::vector<int> counts;
  for (const ChunkShare& share : shares) counts.push_back(share.layers);
  return counts;
}

TEST(ChunkShares, ByCountAreAsEqualAsCanBe) {
  EXPECT_EQ(layers_of(chunk_shares(llama(126), {}, 16)),
            (std::vector<int>{7, 8, 8, 8, 8, 8, 8, 8, 7, 8, 8, 8, 8, 8, 8, 8}));
  const auto shares = chunk_shares(llama(96), {}, 8);
  EXPECT_EQ(layers_of(shares), std::vector<int>(8, 12));
  EXPECT_TRUE(shares.front().embedding && shares.back().head);
  EXPECT_FALSE(shares.front().head || shares.back().embedding);
}

/// Llama 3 405B: 126 layers in 128 chunks, embedding and head alone.
TEST(ChunkShares, EndsOfTheModelCanBeChunksOfTheirOwn) {
  const auto shares = chunk_shares(llama(126), {}, 128);
  EXPECT_EQ(shares.front(), (ChunkShare{.layers = 0, .embedding = true}));
  EXPECT_EQ(shares.back(), (ChunkShare{.layers = 0, .head = true}));
  EXPECT_EQ(std::ranges::count(layers_of(shares), 1), 126);
}

/// Against all splits of a few layers.
TEST(BalancedShares, HaveTheCheapestCostliestChunk) {
  for (const double head : {0.0, 0.4, 1.0, 2.3, 9.0}) {
    for (const double embedding : {0.0, 1.2}) {
      for (int layers = 3; layers <= 9; ++layers) {
        for (int chunks = 2; chunks <= 3; ++chunks) {
          double best = std::numeric_limits<double>::infinity();
          for (int first = 0; first <= layers; ++first) {
            for (int second = 0; first + second <= layers; ++second) {
              const int third = layers - first - second;
              if (chunks == 2 && second > 0) continue;
              const double costliest = chunks == 2 ? std::max(first + embedding, third + head)
                                                   : std::max({first + embedding, double(second), third + head});
              best = std::min(best, costliest);
            }
          }
          const auto shares = balanced_shares(layers, chunks, embedding, head);
          double costliest = 0;
          int sum = 0;
          for (const ChunkShare& share : shares) {
            costliest = std::max(costliest, share.layers + (share.embedding ? embedding : 0) + (share.head ? head : 0));
            sum += share.layers;
          }
          EXPECT_EQ(sum, layers);
          EXPECT_NEAR(costliest, best, 1e-9) << layers << " layers, " << chunks << " chunks, head " << head;
        }
      }
    }
  }
}

TEST(ChunkShares, OfAListAreWhatToSplitWrote) {
  for (const auto& [layers, chunks, head] : {std::tuple{24, 4, 1.7}, {126, 16, 0.6}, {7, 3, 5.0}}) {
    const auto shares = balanced_shares(layers, chunks, 0, head);
    EXPECT_EQ(chunk_shares(llama(layers), {.split = to_split(shares)}, chunks), shares) << to_split(shares);
  }
  EXPECT_EQ(layers_of(chunk_shares(llama(8), {.split = "layers.3, layers.6"}, 3)), (std::vector<int>{3, 3, 2}));
  EXPECT_THROW(chunk_shares(llama(8), {.split = "layers.3"}, 3), ConfigError);
  EXPECT_THROW(chunk_shares(llama(8), {.split = "layers.9"}, 2), ConfigError);
}

}  // namespace
}  // namespace trireme::spec
