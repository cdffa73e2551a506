// kernels/sparse/block_layout.h -- which blocks of queries and keys block-sparse attention computes, as its kernels
// read it.
//
//   const BlockLayout layout(BlockLists{.tokens = 4096, .block = 64, .heads = 1, .begin = ..., .columns = ...});
//   attention_forward(out, lse, q, k, v, {.scale = s, .causal = true, .blocks = &layout});
//
// Lists, not matrices: memory grows with the blocks that are computed. On the CPU they become tiles of 128 queries by
// four chunks of 16 keys with a bit for each 16 x 16 (cpu/attention_problem.h); on a GPU lists by rows and, for the
// gradients of keys, by columns, or gathered chunks (chunk_tiles.h), put there by the first call and kept. Which
// patterns there are is not known here: spec/sparse_attention.h.
// Depends on: base, device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "trireme/kernels/cpu/attention_problem.h"
#include "trireme/kernels/sparse/block_lists.h"

namespace trireme::kernels {

class BlockLayout {
 public:
  /// ConfigError where the lists do not fit together.
  explicit BlockLayout(BlockLists lists);
  BlockLayout(const BlockLayout&) = delete;
  BlockLayout& operator=(const BlockLayout&) = delete;

  std::int64_t tokens() const { return lists_.tokens; }
  bool of_whole_rows() const { return lists_.queries == 0; }
  std::int64_t queries() const { return of_whole_rows() ? lists_.tokens : lists_.queries; }
  std::int64_t keys() const { return of_whole_rows() ? lists_.tokens : lists_.keys; }
  std::int64_t heads() const { return lists_.heads; }
  const BlockLists& lists() const { return lists_; }
  /// Bytes of the lists that the kernels for CPUs read.
  std::size_t bytes() const;

  const std::int64_t* tile_begin(std::int64_t head) const {
    return tile_begin_.data() + head * ((queries() + cpu::kAttentionQueryBlock - 1) / cpu::kAttentionQueryBlock);
  }
  const cpu::AttentionTile* tiles() const { return tiles_.data(); }

  /// int32 on a GPU: rows' lists, and columns' with the rows that have them; the same of tiles of 64 x 64 with their
  /// bits (cuda_blocks.h).
  struct OnDevice {
    at::Tensor row_begin, columns, column_begin, rows;
    at::Tensor row_tile_begin, row_tiles, column_tile_begin, column_tiles;
    std::int64_t tile_rows = 0;
  };
  const OnDevice& on(at::Device device) const;

  /// chunk_tiles.h's lists, int32 on a GPU; `group` heads share keys.
  struct ChunksOnDevice {
    struct Side {
      at::Tensor chunks, begin, entries;
    };
    Side queries, keys;
    std::int64_t tiles = 0;
  };
  const ChunksOnDevice& chunks_on(at::Device device, std::int64_t group) const;

 private:
  OnDevice make_lists(at::Device device) const;

  BlockLists lists_;
  std::vector<std::int64_t> tile_begin_;
  std::vector<cpu::AttentionTile> tiles_;
  mutable std::mutex mutex_;  // ranks that are threads share layouts
  mutable std::deque<std::pair<at::Device, OnDevice>> on_devices_;
  mutable std::deque<std::pair<std::pair<at::Device, std::int64_t>, ChunksOnDevice>> chunks_on_devices_;
};

}  // namespace trireme::kernels
