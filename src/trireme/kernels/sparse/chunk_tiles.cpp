#include "trireme/kernels/sparse/chunk_tiles.h"

#include <algorithm>
#include <numeric>

namespace trireme::kernels {
namespace {

using Lists = std::vector<std::vector<std::int32_t>>;  // [chunk]: chunks of the other side, increasing

/// A head's lists, chunk by chunk.
Lists chunk_lists(const BlockLists& lists, ChunkSide side, std::int64_t head) {
  const std::int64_t chunks = (lists.tokens + kChunkTokens - 1) / kChunkTokens, small = lists.block / kChunkTokens;
  Lists found(static_cast<std::size_t>(chunks));
  for (std::int64_t row = 0; row < lists.rows(); ++row) {
    const auto list = static_cast<std::size_t>(head * lists.rows() + row);
    for (std::int64_t query = row * small; query < std::min((row + 1) * small, chunks); ++query) {
      for (std::int64_t j = lists.begin[list]; j < lists.begin[list + 1]; ++j) {
        const std::int64_t first = lists.columns[static_cast<std::size_t>(j)] * small;
        for (std::int64_t key = first; key < std::min(first + small, chunks); ++key) {
          const std::int64_t of = side == ChunkSide::kQueries ? query : key;
          found[static_cast<std::size_t>(of)].push_back(
              static_cast<std::int32_t>(side == ChunkSide::kQueries ? key : query));
        }
      }
    }
  }
  return found;
}

/// Chunks in the order in which they fill tiles: those with at most four times the median list, then the others.
std::vector<std::int32_t> tile_order(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> sorted = lengths;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
  const std::int64_t most = 4 * std::max<std::int64_t>(sorted[sorted.size() / 2], 1);
  std::vector<std::int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_partition(order.begin(), order.end(),
                        [&](std::int32_t chunk) { return lengths[static_cast<std::size_t>(chunk)] <= most; });
  return order;
}

struct Tile {
  std::vector<std::int32_t> chunks, entries;
};

Tile gathered(const Lists& lists, std::vector<std::int32_t> chunks) {
  std::vector<std::int32_t> bits(lists.size(), 0);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    for (const std::int32_t other : lists[static_cast<std::size_t>(chunks[i])])
      bits[static_cast<std::size_t>(other)] |= 1 << i;
  }
  Tile tile{std::move(chunks), {}};
  for (std::size_t other = 0; other < bits.size(); ++other) {
    if (bits[other] != 0) tile.entries.push_back(static_cast<std::int32_t>(other) * 256 + bits[other]);
  }
  while (tile.entries.size() % kListMultiple != 0) tile.entries.push_back(kNoChunk * 256);
  tile.chunks.resize(kTileChunks, kNoChunk);
  return tile;
}

}  // namespace

ChunkTiles chunk_tiles(const BlockLists& lists, ChunkSide side, std::int64_t group) {
  const std::int64_t chunks = (lists.tokens + kChunkTokens - 1) / kChunkTokens;
  ChunkTiles all{.tiles = (chunks + kTileChunks - 1) / kTileChunks, .chunks = {}, .begin = {0}, .entries = {}};
  for (std::int64_t first = 0; first < lists.heads; first += group) {
    std::vector<Lists> heads;
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(chunks), 0);
    for (std::int64_t head = first; head < std::min(first + group, lists.heads); ++head) {
      heads.push_back(chunk_lists(lists, side, head));
      for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] += static_cast<std::int64_t>(heads.back()[i].size());
    }
    const std::vector<std::int32_t> order = tile_order(lengths);
    std::vector<std::vector<Tile>> tiles;  // [tile][head of the group]
    for (std::size_t at = 0; at < order.size(); at += kTileChunks) {
      std::vector<std::int32_t> of(order.begin() + static_cast<std::ptrdiff_t>(at),
                                   order.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                       at + static_cast<std::size_t>(kTileChunks), order.size())));
      tiles.emplace_back();
      for (const Lists& head : heads) tiles.back().push_back(gathered(head, of));
    }
    const auto length = [](const std::vector<Tile>& tile) {
      std::size_t sum = 0;
      for (const Tile& head : tile) sum += head.entries.size();
      return sum;
    };
    std::stable_sort(tiles.begin(), tiles.end(),
                     [&](const auto& one, const auto& other) { return length(one) > length(other); });
    for (std::size_t head = 0; head < heads.size(); ++head) {
      for (const std::vector<Tile>& tile : tiles) {
        all.chunks.insert(all.chunks.end(), tile[head].chunks.begin(), tile[head].chunks.end());
        all.entries.insert(all.entries.end(), tile[head].entries.begin(), tile[head].entries.end());
        all.begin.push_back(static_cast<std::int32_t>(all.entries.size()));
      }
    }
  }
  return all;
}

}  // namespace trireme::kernels
