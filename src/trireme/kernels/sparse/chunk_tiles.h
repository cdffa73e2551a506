// kernels/sparse/chunk_tiles.h -- block-sparse attention's work, gathered: tiles of eight chunks of 16 tokens, each
// with the list of chunks on the other side that any of the eight meets.
//
// A dense GEMM over gathered chunks does little that is not wanted, whatever the size of blocks: the blocks that all
// rows of a tile see lie far apart in a sequence, but side by side in its list. Chunks that meet many others (global
// blocks) are put into tiles of their own, so that their long lists do not become those of their neighbours.
// Depends on: block_lists.h.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/kernels/sparse/block_lists.h"

namespace trireme::kernels {

constexpr std::int64_t kChunkTokens = 16;  ///< queries or keys of a chunk
constexpr std::int64_t kTileChunks = 8;    ///< chunks of a tile: 128 queries or keys
constexpr std::int64_t kListMultiple = 8;  ///< entries of a list: a multiple of this
constexpr std::int32_t kNoChunk = -1;      ///< fills up tiles and lists

struct ChunkTiles {
  std::int64_t tiles = 0;             ///< of a head
  std::vector<std::int32_t> chunks;   ///< [heads, tiles, kTileChunks]: those of a tile, increasing, then kNoChunk
  std::vector<std::int32_t> begin;    ///< [heads * tiles + 1]: where the list of a tile begins
  std::vector<std::int32_t> entries;  ///< chunk * 256 + bits: bit i, the tile's chunk number i meets it; increasing
};

enum class ChunkSide : std::uint8_t { kQueries, kKeys };

/// Tiles of queries with lists of keys, or of keys with lists of queries. `group` consecutive heads have the same
/// chunks in their tiles (those that share keys); the tiles with the longest lists come first.
ChunkTiles chunk_tiles(const BlockLists& lists, ChunkSide side, std::int64_t group);

}  // namespace trireme::kernels
