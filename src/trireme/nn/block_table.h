// nn/block_table.h -- which blocks of a paged KV cache hold which tokens: block tables, and the allocator behind them.
//
//   BlockManager blocks({{.window = 0, .num_blocks = 64}});
//   auto tables = blocks.new_tables();                      // of one sequence
//   if (!blocks.reserve(tables, prompt.size())) ...         // wait, or preempt another sequence
//   blocks.release(tables);                                 // the sequence has ended
//
// Plain values: a scheduler copies, compares and replays them. After every call free + held = all blocks.
// Depends on: base. No tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace trireme::nn {

inline constexpr std::int64_t kKvBlockSize = 16;  ///< tokens
using BlockId = std::int32_t;
inline constexpr BlockId kNoBlock = -1;

/// Blocks that `tokens` tokens take from the beginning of a block.
constexpr std::int64_t blocks_for(std::int64_t tokens) { return (tokens + kKvBlockSize - 1) / kKvBlockSize; }

class BlockAllocator {
 public:
  explicit BlockAllocator(std::int64_t num_blocks = 0);

  std::int64_t num_blocks() const { return static_cast<std::int64_t>(held_.size()); }
  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  /// So many, or none at all. What was freed last is given first: it may still be in a CPU's caches.
  std::optional<std::vector<BlockId>> allocate(std::int64_t count);
  /// An InternalError where the block is free already, or none of these.
  void free(BlockId block);

  bool operator==(const BlockAllocator&) const = default;

 private:
  std::vector<BlockId> free_;  // the last is the next
  std::vector<bool> held_;
};

/// Logical block -> physical block: token p of the sequence is token p % kKvBlockSize of blocks[p / kKvBlockSize].
struct BlockTable {
  std::vector<BlockId> blocks;  ///< kNoBlock: out of the window, and freed
  std::int64_t freed = 0;       ///< how many of the first ones are

  std::int64_t capacity() const { return static_cast<std::int64_t>(blocks.size()) * kKvBlockSize; }
  bool operator==(const BlockTable&) const = default;
};

/// The layers with one sliding window: they need the same tokens, so a sequence has one block table for all of them,
/// and each of them has this many blocks.
struct KvCacheGroup {
  std::int64_t window = 0;  ///< 0: none
  std::int64_t num_blocks = 0;
  bool operator==(const KvCacheGroup&) const = default;
};

class BlockManager {
 public:
  using Tables = std::vector<BlockTable>;  ///< of one sequence, by group

  explicit BlockManager(std::span<const KvCacheGroup> groups);

  Tables new_tables() const { return Tables(allocators_.size()); }
  /// Makes room for `tokens` tokens, those of the sequence so far included. False where a group has too few free
  /// blocks: then nothing has changed.
  [[nodiscard]] bool reserve(Tables& tables, std::int64_t tokens);
  /// Frees the blocks of sliding windows that no token after the first `length` ones will see.
  void free_out_of_window(Tables& tables, std::int64_t length);
  /// Frees all blocks; the tables are empty then.
  void release(Tables& tables);

  const BlockAllocator& allocator(std::size_t group) const { return allocators_.at(group); }
  bool operator==(const BlockManager&) const = default;

 private:
  std::vector<std::int64_t> windows_;
  std::vector<BlockAllocator> allocators_;
};

}  // namespace trireme::nn
