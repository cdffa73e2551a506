// Where experts and copies of hot ones go: EPLB's published example, and what must hold for any loads.
#include "trireme/layout/expert_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/errors.h"
#include "trireme/base/random.h"

namespace trireme::layout {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ExpertPlacement, IsEplbsPublishedExample) {  // github.com/deepseek-ai/EPLB, README
  const ExpertCluster cluster{.slots = 16, .groups = 4, .nodes = 2, .ranks = 8};
  const std::vector<std::int64_t> first{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
  const std::vector<std::int64_t> second{20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27};
  EXPECT_THAT(place_experts(first, cluster).expert_of_slot,
              ElementsAre(5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1));
  EXPECT_THAT(place_experts(second, cluster).expert_of_slot,
              ElementsAre(7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1));
}

TEST(ExpertPlacement, WithoutDividingGroupsIsOverAllRanks) {
  const std::vector<std::int64_t> loads{9, 1, 1, 1, 1, 1};
  const ExpertPlacement placement = place_experts(loads, {.slots = 8, .groups = 3, .nodes = 2, .ranks = 4});
  EXPECT_THAT(placement.copies, ElementsAre(3, 1, 1, 1, 1, 1));
}

TEST(ExpertPlacement, SaysWhatDoesNotDivide) {
  const std::vector<std::int64_t> loads(12, 1);
  EXPECT_THAT(words_of([&] { place_experts(loads, {.slots = 8, .ranks = 8}); }), HasSubstr("take at least 12 slots"));
  EXPECT_THAT(words_of([&] { place_experts(loads, {.slots = 14, .ranks = 8}); }), HasSubstr("14 slots on 8 ranks"));
}

TEST(ExpertCopies, GoToRanksWithLittleToDo) {
  // Expert 0 has nearly all: its rank is 0, so every other rank helps.
  const std::vector<std::int64_t> loads{700, 10, 10, 10, 10, 10, 10, 10};
  const std::vector<std::int64_t> copies = place_copies(loads, 4, 1);
  EXPECT_THAT(std::vector(copies.begin() + 1, copies.end()), ElementsAre(0, 0, 0));
  EXPECT_GT(busiest_rank(loads, 4, std::vector<std::int64_t>(4, -1)), 3.6);
  EXPECT_LT(busiest_rank(loads, 4, copies), 1.02);
}

TEST(ExpertCopies, NeverStandWhereTheExpertIsAndNeverMakeItWorse) {
  const Random draws(5, "loads");
  for (int round = 0; round < 200; ++round) {
    const std::int64_t ranks = 2 << round % 3, each = 1 + round % 4, room = 1 + round % 2, experts = ranks * each;
    std::vector<std::int64_t> loads;
    for (std::int64_t i = 0; i < experts; ++i) {
      const auto draw = draws.below(1000, static_cast<std::uint64_t>(round * 1000 + i));
      loads.push_back(static_cast<std::int64_t>(draw * draw / 1000));
    }
    const std::vector<std::int64_t> copies = place_copies(loads, ranks, room);
    ASSERT_EQ(copies.size(), static_cast<std::size_t>(ranks * room));
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      std::set<std::int64_t> there;
      for (std::int64_t i = 0; i < room; ++i) {
        const std::int64_t expert = copies[static_cast<std::size_t>(rank * room + i)];
        if (expert < 0) continue;
        EXPECT_NE(expert / each, rank);
        EXPECT_TRUE(there.insert(expert).second) << "twice on one rank";
        if (i > 0) {
          EXPECT_GE(copies[static_cast<std::size_t>(rank * room + i - 1)], 0) << "a hole";
        }
      }
    }
    EXPECT_LE(busiest_rank(loads, ranks, copies),
              busiest_rank(loads, ranks, std::vector<std::int64_t>(copies.size(), -1)) + 1e-9);
  }
}

TEST(ExpertOwners, SwapWhatMakesTheBusiestRankLessBusy) {
  // Ranks of two: 90 + 80 and 5 + 6 become 6 + 80 and 5 + 90; those which stay keep their places.
  const std::vector<std::int64_t> loads{90, 80, 5, 6};
  EXPECT_THAT(place_owners(loads, {.order = {0, 1, 2, 3}, .ranks = 2}), ElementsAre(3, 1, 2, 0));
  EXPECT_THAT(place_owners(loads, {.order = {3, 0, 1, 2}, .ranks = 2}), ElementsAre(3, 0, 1, 2))
      << "as good as it gets";
  const std::vector<std::int64_t> even{100, 101, 100, 100};
  EXPECT_THAT(place_owners(even, {.order = {0, 1, 2, 3}, .ranks = 2}), ElementsAre(0, 1, 2, 3)) << "not worth it";
}

TEST(ExpertOwners, StayOnTheirNode) {
  const std::vector<std::int64_t> loads{100, 90, 2, 1, 1, 1, 1, 1};
  const auto order = place_owners(loads, {.order = {0, 1, 2, 3, 4, 5, 6, 7}, .ranks = 4, .node_ranks = 2});
  EXPECT_THAT(std::vector(order.begin() + 4, order.end()), ElementsAre(4, 5, 6, 7));
  EXPECT_LT(busiest_rank(in_order(loads, order), 4, {}), busiest_rank(loads, 4, {}));
}

TEST(ExpertOwners, AreAPermutationThatIsNeverWorseAndSettles) {
  const Random draws(6, "owners");
  double gained = 0;
  for (int round = 0; round < 200; ++round) {
    const std::int64_t ranks = 2 << round % 3, each = 1 + round % 5, experts = ranks * each;
    std::vector<std::int64_t> loads, order(static_cast<std::size_t>(experts));
    for (std::int64_t i = 0; i < experts; ++i) {
      const auto draw = draws.below(1000, static_cast<std::uint64_t>(round * 1000 + i));
      loads.push_back(static_cast<std::int64_t>(draw * draw / 1000));
    }
    std::iota(order.begin(), order.end(), 0);
    const double before = busiest_rank(loads, ranks, {});
    const std::vector<std::int64_t> moved = place_owners(loads, {.order = order, .ranks = ranks});
    EXPECT_THAT(moved, testing::UnorderedElementsAreArray(order));
    const double after = busiest_rank(in_order(loads, moved), ranks, {});
    EXPECT_TRUE(moved == order || after <= (1 - kLeastGain) * before + 1e-12) << round;
    EXPECT_EQ(place_owners(loads, {.order = moved, .ranks = ranks}), moved) << round;
    gained += before - after;
  }
  EXPECT_GT(gained / 200, 0.2);
}

}  // namespace
}  // namespace trireme::layout
