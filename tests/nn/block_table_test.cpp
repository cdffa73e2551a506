// Block tables of a paged KV cache, and the accounting behind them.
#include "trireme/nn/block_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::nn {
namespace {

TEST(BlockAllocator, GivesEachBlockOnceAndTakesItBackOnce) {
  BlockAllocator allocator(4);
  const auto first = allocator.allocate(3);
  ASSERT_TRUE(first);
  EXPECT_EQ(std::set<BlockId>(first->begin(), first->end()).size(), 3u);
  EXPECT_EQ(allocator.num_free(), 1);
  EXPECT_EQ(allocator.allocate(2), std::nullopt) << "one is left";
  EXPECT_EQ(allocator.num_free(), 1) << "and stays there";
  allocator.free(first->at(1));
  EXPECT_EQ(allocator.allocate(1)->at(0), first->at(1)) << "what was freed last goes first";
  allocator.free(first->at(0));
  EXPECT_THROW(allocator.free(first->at(0)), InternalError);
  EXPECT_THROW(allocator.free(4), InternalError);
  EXPECT_THROW(allocator.free(kNoBlock), InternalError);
}

TEST(BlockManager, ReservesInEveryGroupOrInNone) {
  const std::vector<KvCacheGroup> groups{{.window = 0, .num_blocks = 8}, {.window = 20, .num_blocks = 2}};
  BlockManager manager(groups);
  auto tables = manager.new_tables();
  ASSERT_TRUE(manager.reserve(tables, 17));
  EXPECT_EQ(tables[0].blocks.size(), 2u);
  EXPECT_EQ(tables[1].blocks.size(), 2u);
  const BlockManager before = manager;
  const auto tables_before = tables;
  EXPECT_FALSE(manager.reserve(tables, 33)) << "the window's group has no third block";
  EXPECT_EQ(manager, before);
  EXPECT_EQ(tables, tables_before);
  EXPECT_TRUE(manager.reserve(tables, 32)) << "which two blocks hold already";
  EXPECT_EQ(manager, before);
  manager.release(tables);
  EXPECT_EQ(tables, manager.new_tables());
  EXPECT_EQ(manager.allocator(0).num_free(), 8);
  EXPECT_EQ(manager.allocator(1).num_free(), 2);
}

TEST(BlockManager, AWindowFreesWhatNoLaterTokenSees) {
  constexpr std::int64_t kWindow = 20;
  const std::vector<KvCacheGroup> groups{{.window = 0, .num_blocks = 64}, {.window = kWindow, .num_blocks = 64}};
  BlockManager manager(groups);
  auto tables = manager.new_tables();
  for (std::int64_t length = 1; length <= 500; ++length) {
    ASSERT_TRUE(manager.reserve(tables, length));
    manager.free_out_of_window(tables, length);
    const std::int64_t seen = std::max<std::int64_t>(0, length - kWindow + 1);  // by the token at position `length`
    for (std::int64_t at = 0; at < length; ++at) {
      const auto block = static_cast<std::size_t>(at / kKvBlockSize);
      ASSERT_NE(tables[0].blocks[block], kNoBlock);
      if (at >= seen) {
        ASSERT_NE(tables[1].blocks[block], kNoBlock) << at << " of " << length;
      } else if ((at / kKvBlockSize + 1) * kKvBlockSize <= seen) {
        ASSERT_EQ(tables[1].blocks[block], kNoBlock) << at << " of " << length;
      }
    }
    ASSERT_LE(manager.allocator(1).num_blocks() - manager.allocator(1).num_free(), kWindow / kKvBlockSize + 2);
  }
}

TEST(BlockManager, AccountsForEveryBlockWhateverComes) {
  const std::vector<KvCacheGroup> groups{{.window = 0, .num_blocks = 40}, {.window = 24, .num_blocks = 17}};
  const Random random(3, "blocks");
  std::uint64_t draw = 0;
  for (int trace = 0; trace < 50; ++trace) {
    BlockManager manager(groups);
    struct Running {
      BlockManager::Tables tables;
      std::int64_t length = 0;
    };
    std::vector<Running> running(6, Running{manager.new_tables()});
    for (int step = 0; step < 200; ++step) {
      Running& one = running[random.below(running.size(), draw++)];
      if (random.below(12, draw++) == 0) {
        manager.release(one.tables);
        one.length = 0;
      } else {
        const auto more = static_cast<std::int64_t>(1 + random.below(40, draw++));
        if (manager.reserve(one.tables, one.length + more)) one.length += more;
        manager.free_out_of_window(one.tables, one.length);
      }
      for (std::size_t group = 0; group < groups.size(); ++group) {
        std::set<BlockId> held;
        for (const Running& each : running) {
          for (const BlockId block : each.tables[group].blocks) {
            ASSERT_TRUE(block == kNoBlock || held.insert(block).second) << "block " << block << " is held twice";
          }
        }
        ASSERT_EQ(static_cast<std::int64_t>(held.size()) + manager.allocator(group).num_free(),
                  groups[group].num_blocks);
      }
    }
    for (Running& one : running) manager.release(one.tables);
    EXPECT_EQ(manager.allocator(0).num_free(), 40);
    EXPECT_EQ(manager.allocator(1).num_free(), 17);
  }
}

}  // namespace
}  // namespace trireme::nn
