// The plan of a dispatch, on all ranks together: every row travels once, passes stay within their limit.
#include "trireme/nn/moe/dispatch.h"

#include <gmock/gmock.h>

#include <numeric>

#include "trireme/base/random.h"

namespace trireme::nn::moe {
namespace {

using testing::ElementsAre;

TEST(DispatchPlan, EndsPassesBetweenExpertsWhereItCan) {
  // One rank, experts with 3, 2, 5 and 1 rows; at most 4 at once.
  const DispatchPlan plan = plan_dispatch(std::vector<std::int64_t>{3, 2, 5, 1}, 1, 0, 4);
  ASSERT_EQ(plan.size(), 4U);
  EXPECT_THAT(plan[0].offsets, ElementsAre(0, 3, 3, 3, 3));
  EXPECT_THAT(plan[1].offsets, ElementsAre(0, 0, 2, 2, 2));
  EXPECT_THAT(plan[2].offsets, ElementsAre(0, 0, 0, 4, 4)) << "larger than a pass";
  EXPECT_THAT(plan[3].offsets, ElementsAre(0, 0, 0, 1, 2));
  EXPECT_THAT(plan[2].send_first, ElementsAre(5));
  EXPECT_THAT(plan[2].send, ElementsAre(4));
}

TEST(DispatchPlan, HasOneEmptyPassWithoutRows) {
  const DispatchPlan plan = plan_dispatch(std::vector<std::int64_t>(8, 0), 2, 1, 1);
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].rows(), 0);
  EXPECT_THAT(plan[0].send, ElementsAre(0, 0));
}

TEST(DispatchPlan, SendsEveryRowOnceAndWhatIsSentIsReceived) {
  const Random draws(1, "counts");
  for (int round = 0; round < 60; ++round) {
    const int ranks = 1 + round % 4;
    const std::int64_t each = 1 + round % 3, experts = ranks * each, limit = 1 + round % 9;
    std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks * experts));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      counts[i] = static_cast<std::int64_t>(draws.below(6, static_cast<std::uint64_t>(round) * 1000 + i));
    }
    std::vector<DispatchPlan> plans;
    for (int rank = 0; rank < ranks; ++rank) plans.push_back(plan_dispatch(counts, ranks, rank, limit));
    for (int rank = 0; rank < ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      ASSERT_EQ(plans[r].size(), plans[0].size());
      std::vector<int> sent(static_cast<std::size_t>(
          std::accumulate(counts.begin() + rank * experts, counts.begin() + (rank + 1) * experts, std::int64_t{0})));
      for (std::size_t p = 0; p < plans[r].size(); ++p) {
        EXPECT_LE(plans[r][p].rows(), limit);
        EXPECT_EQ(std::accumulate(plans[r][p].receive.begin(), plans[r][p].receive.end(), std::int64_t{0}),
                  plans[r][p].rows());
        for (std::size_t to = 0; to < static_cast<std::size_t>(ranks); ++to) {
          EXPECT_EQ(plans[r][p].send[to], plans[to][p].receive[r]);
          for (std::int64_t i = 0; i < plans[r][p].send[to]; ++i) {
            ++sent[static_cast<std::size_t>(plans[r][p].send_first[to] + i)];
          }
        }
      }
      EXPECT_THAT(sent, testing::Each(1));
    }
  }
}

TEST(Arena, IsAShareOfAllRows) {
  EXPECT_EQ(arena_rows(std::vector<std::int64_t>{10, 0, 0, 2}, 2, 1.5), 9);
  EXPECT_EQ(arena_rows(std::vector<std::int64_t>{0, 0}, 2, 1.5), 1);
  EXPECT_EQ(arena_rows(std::vector<std::int64_t>{10, 0, 0, 2}, 2, 1e300), 12) << "never more than there are";
}

}  // namespace
}  // namespace trireme::nn::moe
