#include "trireme/observe/expert_loads.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "trireme/observe/records.h"

namespace trireme::observe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StepRecord step_with_loads(std::int64_t step, std::vector<std::int64_t> tokens) {
  StepRecord record{.step = step};
  record.experts = {{"layers.1.mlp", std::move(tokens)}};
  record.expert_ranks = 2;
  return record;
}

TEST(ExpertLoads, ComeBackAsTheyWereWritten) {
  const StepRecord record = step_with_loads(3, {10, 6, 8, 8});
  EXPECT_EQ(step_from(to_json(record)), record);
  EXPECT_EQ(step_from(to_json(StepRecord{.step = 1})).experts.size(), 0U);
}

TEST(ExpertLoads, AddUpOverTheLastSteps) {
  const std::vector<StepRecord> steps{step_with_loads(1, {9, 9, 9, 9}), step_with_loads(2, {1, 2, 3, 2}),
                                      StepRecord{.step = 3}, step_with_loads(4, {3, 0, 1, 4})};
  const ExpertBalance balance = expert_balance(steps, 2);
  EXPECT_EQ(balance.steps, 2);
  EXPECT_EQ(balance.last_step, 4);
  ASSERT_EQ(balance.layers.size(), 1U);
  EXPECT_THAT(balance.layers[0].tokens, ElementsAre(4, 2, 4, 6));
  EXPECT_THAT(rank_loads(balance.layers[0].tokens, balance.ranks), ElementsAre(6, 10));
  EXPECT_DOUBLE_EQ(max_over_mean(balance.layers[0].tokens), 1.5);
  const std::string table = balance_table(balance);
  EXPECT_THAT(table, HasSubstr("expert 3: 6"));
  EXPECT_THAT(table, HasSubstr("6, 10"));
  EXPECT_EQ(balance_table(expert_balance({}, 2)), "");
}

/// Experts lie in another order, and copies share: ranks tell their own tokens, and what the others waited.
TEST(ExpertLoads, TellWhatRanksComputedWhatItCostAndWhatMoved) {
  StepRecord first = step_with_loads(1, {9, 1, 1, 1}), second = step_with_loads(2, {9, 1, 1, 1});
  first.experts[0].ranks = {10, 2}, first.experts[0].cost_ms = 4;
  first.experts_moved =
      ExpertsMoved{.experts = 2, .bytes = 3 << 20, .seconds = 0.5, .busiest_before = 1.67, .busiest_after = 1.5};
  second.experts[0].ranks = {9, 3}, second.experts[0].cost_ms = 3;
  EXPECT_EQ(step_from(to_json(first)), first);
  const std::vector<StepRecord> steps{first, second};
  const ExpertBalance balance = expert_balance(steps);
  EXPECT_THAT(balance.layers[0].ranks, ElementsAre(19, 5));
  const std::string table = balance_table(balance);
  EXPECT_THAT(table, HasSubstr("<td>1.58</td><td>3.50</td><td>19, 5</td>"));
  EXPECT_THAT(table, HasSubstr("after 1 of the run's steps: 2 of them in all, 3 MiB between ranks in 0.50 s"));
  EXPECT_THAT(table, HasSubstr("from 1.67 to 1.50 of the mean"));
}

}  // namespace
}  // namespace trireme::observe
