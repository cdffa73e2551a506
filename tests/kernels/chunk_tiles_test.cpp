// Gathered chunks of block-sparse attention: every pair of chunks that a list names is met exactly once.
#include "trireme/kernels/sparse/chunk_tiles.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "trireme/base/random.h"

namespace trireme::kernels {
namespace {

using Pairs = std::multiset<std::pair<std::int64_t, std::int64_t>>;  // chunk of queries, chunk of keys

BlockLists random_lists(std::int64_t tokens, std::int64_t block, std::int64_t heads, double density) {
  BlockLists lists{.tokens = tokens, .block = block, .heads = heads, .begin = {0}, .columns = {}};
  const Random random(7, "lists");
  for (std::int64_t list = 0; list < heads * lists.rows(); ++list) {
    for (std::int64_t column = 0; column < lists.rows(); ++column) {
      if (column == 0 || random.uniform(static_cast<std::uint64_t>(list * lists.rows() + column)) < density)
        lists.columns.push_back(static_cast<std::int32_t>(column));
    }
    lists.begin.push_back(static_cast<std::int64_t>(lists.columns.size()));
  }
  return lists;
}

Pairs wanted_pairs(const BlockLists& lists, std::int64_t head) {
  const std::int64_t chunks = (lists.tokens + kChunkTokens - 1) / kChunkTokens, small = lists.block / kChunkTokens;
  Pairs pairs;
  for (std::int64_t query = 0; query < chunks; ++query) {
    const auto list = static_cast<std::size_t>(head * lists.rows() + query / small);
    for (std::int64_t j = lists.begin[list]; j < lists.begin[list + 1]; ++j) {
      const std::int64_t first = lists.columns[static_cast<std::size_t>(j)] * small;
      for (std::int64_t key = first; key < std::min(first + small, chunks); ++key) pairs.emplace(query, key);
    }
  }
  return pairs;
}

Pairs found_pairs(const ChunkTiles& tiles, std::int64_t head, ChunkSide side) {
  Pairs pairs;
  for (std::int64_t tile = head * tiles.tiles; tile < (head + 1) * tiles.tiles; ++tile) {
    const auto at = static_cast<std::size_t>(tile);
    EXPECT_EQ((tiles.begin[at + 1] - tiles.begin[at]) % kListMultiple, 0);
    for (std::int32_t i = tiles.begin[at]; i < tiles.begin[at + 1]; ++i) {
      const std::int32_t entry = tiles.entries[static_cast<std::size_t>(i)], other = entry >> 8;
      for (std::int64_t bit = 0; bit < kTileChunks; ++bit) {
        if ((entry >> bit & 1) == 0) continue;
        const std::int64_t own = tiles.chunks[static_cast<std::size_t>(tile * kTileChunks + bit)];
        EXPECT_GE(own, 0);
        EXPECT_GE(other, 0);
        side == ChunkSide::kQueries ? pairs.emplace(own, other) : pairs.emplace(other, own);
      }
    }
  }
  return pairs;
}

TEST(ChunkTiles, EveryPairIsMetOnce) {
  for (const auto& [tokens, block] : {std::pair{64, 16}, {200, 16}, {1000, 32}, {333, 48}, {1024, 128}, {5, 16}}) {
    SCOPED_TRACE(tokens);
    const BlockLists lists = random_lists(tokens, block, 4, 0.2);
    for (const ChunkSide side : {ChunkSide::kQueries, ChunkSide::kKeys}) {
      for (const std::int64_t group : {1, 2, 4}) {
        const ChunkTiles tiles = chunk_tiles(lists, side, group);
        ASSERT_EQ(static_cast<std::int64_t>(tiles.begin.size()), 4 * tiles.tiles + 1);
        for (std::int64_t head = 0; head < 4; ++head)
          EXPECT_EQ(found_pairs(tiles, head, side), wanted_pairs(lists, head)) << head;
      }
    }
  }
}

TEST(ChunkTiles, HeadsThatShareKeysHaveTheSameChunks) {
  const ChunkTiles tiles = chunk_tiles(random_lists(700, 16, 4, 0.1), ChunkSide::kKeys, 2);
  const auto of = [&](std::int64_t head) {
    const auto size = static_cast<std::size_t>(tiles.tiles * kTileChunks);
    const auto first = tiles.chunks.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(head) * size);
    return std::vector<std::int32_t>(first, first + static_cast<std::ptrdiff_t>(size));
  };
  EXPECT_EQ(of(0), of(1));
  EXPECT_EQ(of(2), of(3));
}

/// DeepSpeed's fixed pattern: the last block of each window of four is seen by all later ones.
TEST(ChunkTiles, LongListsDoNotBecomeTheirNeighbours) {
  BlockLists lists{.tokens = 16 * 256, .block = 16, .heads = 1, .begin = {0}, .columns = {}};
  std::int64_t pairs = 0;
  for (std::int32_t row = 0; row < 256; ++row) {
    for (std::int32_t column = 0; column <= row; ++column) {
      if (column % 4 != 3 && column / 4 != row / 4) continue;
      lists.columns.push_back(column);
      ++pairs;
    }
    lists.begin.push_back(static_cast<std::int64_t>(lists.columns.size()));
  }
  for (const ChunkSide side : {ChunkSide::kQueries, ChunkSide::kKeys}) {
    const ChunkTiles tiles = chunk_tiles(lists, side, 1);
    const auto computed = static_cast<double>(tiles.entries.size()) * kTileChunks;
    // A third without the tiles of their own.
    EXPECT_GT(static_cast<double>(pairs) / computed, 0.6) << (side == ChunkSide::kKeys ? "keys" : "queries");
  }
}

}  // namespace
}  // namespace trireme::kernels
