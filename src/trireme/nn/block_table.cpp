#include "trireme/nn/block_table.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::nn {

BlockAllocator::BlockAllocator(std::int64_t num_blocks) : held_(static_cast<std::size_t>(num_blocks), false) {
  for (std::int64_t block = num_blocks; block-- > 0;) free_.push_back(static_cast<BlockId>(block));
}

std::optional<std::vector<BlockId>> BlockAllocator::allocate(std::int64_t count) {
  if (count > num_free()) return std::nullopt;
  std::vector<BlockId> blocks(free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - static_cast<std::size_t>(count));
  for (const BlockId block : blocks) held_[static_cast<std::size_t>(block)] = true;
  return blocks;
}

void BlockAllocator::free(BlockId block) {
  TRIREME_CHECK(block >= 0 && block < num_blocks() && held_[static_cast<std::size_t>(block)],
                "block {} of {} is freed, but nobody holds it", block, num_blocks());
  held_[static_cast<std::size_t>(block)] = false;
  free_.push_back(block);
}

BlockManager::BlockManager(std::span<const KvCacheGroup> groups) {
  for (const KvCacheGroup& group : groups) {
    windows_.push_back(group.window);
    allocators_.emplace_back(group.num_blocks);
  }
}

bool BlockManager::reserve(Tables& tables, std::int64_t tokens) {
  TRIREME_CHECK(tables.size() == allocators_.size(), "{} block tables for {} groups", tables.size(),
                allocators_.size());
  const auto missing = [&](std::size_t group) {
    return std::max<std::int64_t>(0, blocks_for(tokens) - static_cast<std::int64_t>(tables[group].blocks.size()));
  };
  for (std::size_t group = 0; group < tables.size(); ++group) {
    if (missing(group) > allocators_[group].num_free()) return false;
  }
  for (std::size_t group = 0; group < tables.size(); ++group) {
    const auto added = allocators_[group].allocate(missing(group)).value();
    tables[group].blocks.insert(tables[group].blocks.end(), added.begin(), added.end());
  }
  return true;
}

void BlockManager::free_out_of_window(Tables& tables, std::int64_t length) {
  for (std::size_t group = 0; group < tables.size(); ++group) {
    if (windows_[group] <= 0) continue;
    BlockTable& table = tables[group];
    // The next token, at position `length`, sees from here on.
    const std::int64_t seen = std::max<std::int64_t>(0, length - windows_[group] + 1);
    const auto end = std::min(seen / kKvBlockSize, static_cast<std::int64_t>(table.blocks.size()));
    for (; table.freed < end; ++table.freed) {
      BlockId& block = table.blocks[static_cast<std::size_t>(table.freed)];
      allocators_[group].free(block);
      block = kNoBlock;
    }
  }
}

void BlockManager::release(Tables& tables) {
  for (std::size_t group = 0; group < tables.size(); ++group) {
    for (const BlockId block : tables[group].blocks) {
      if (block != kNoBlock) allocators_[group].free(block);
    }
    tables[group] = {};
  }
}

}  // namespace trireme::nn
