#include "trireme/checkpoint/save_plan.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/layout/placing.h"

namespace trireme::checkpoint {
namespace {

using layout::Index;

std::vector<std::vector<HeldTensor>> hold(const layout::Mesh& mesh,
                                          const std::vector<std::pair<std::string, layout::Shape>>& tensors,
                                          const std::function<void(layout::Placing&)>& place) {
  std::vector<std::vector<HeldTensor>> all(static_cast<std::size_t>(mesh.ranks()));
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    for (const auto& [name, shape] : tensors) {
      layout::Placing placing(mesh, rank, name, shape);
      place(placing);
      all[static_cast<std::size_t>(rank)].push_back({formats::Dtype::kF32, placing.placement()});
    }
  }
  return all;
}

/// Each element of each tensor exactly once, by a rank that has it where the plan says.
void expect_each_once(const SavePlan& plan, const std::vector<std::vector<HeldTensor>>& holdings) {
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    std::vector<int> written(static_cast<std::size_t>(layout::elements(plan.tensors[t].shape)));
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      for (const SaveShare& share : plan.ranks[rank]) {
        if (share.tensor != t) continue;
        for (const auto& holding : holdings[rank]) {
          if (holding.placement.name != plan.tensors[t].name) continue;
          for (const layout::ContiguousRun& run : share.runs) {
            for (Index i = 0; i < run.count; ++i) {
              ++written[static_cast<std::size_t>(run.global + i)];
              ASSERT_EQ(layout::global_index(holding.placement, run.local + i), run.global + i);
            }
          }
        }
      }
    }
    for (const int times : written) ASSERT_EQ(times, 1) << plan.tensors[t].name;
  }
}

TEST(SavePlan, CopiesShareTheWorkEvenly) {
  const layout::Mesh mesh = layout::parse_mesh("dp=4");
  const auto holdings = hold(mesh, {{"a", {300, 100}}, {"b", {7}}, {"c", {1000, 1000}}, {"d", {64, 64}}}, [](auto&) {});
  const SavePlan plan = plan_save(holdings, 1000);
  expect_each_once(plan, holdings);
  std::uint64_t least = ~0ULL, most = 0;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    least = std::min(least, plan.bytes_of(rank));
    most = std::max(most, plan.bytes_of(rank));
  }
  EXPECT_LT(static_cast<double>(most), 1.01 * static_cast<double>(least));
}

TEST(SavePlan, WholeTensorsStayWholeWhereThatIsEven) {
  const layout::Mesh mesh = layout::parse_mesh("dp=2");
  const auto holdings =
      hold(mesh, {{"a", {512, 512}}, {"b", {512, 512}}, {"c", {512, 512}}, {"d", {512, 512}}}, [](auto&) {});
  const SavePlan plan = plan_save(holdings, 1000);
  for (const auto& shares : plan.ranks) {
    ASSERT_EQ(shares.size(), 2U);
    for (const SaveShare& share : shares) EXPECT_EQ(share.runs.size(), 1U);
  }
}

TEST(SavePlan, SmallTensorsAreNotCut) {
  const layout::Mesh mesh = layout::parse_mesh("dp=8");
  const auto holdings = hold(mesh, {{"a", {100}}}, [](auto&) {});
  const SavePlan plan = plan_save(holdings);
  expect_each_once(plan, holdings);
  EXPECT_EQ(plan.bytes_of(0), 400U);
}

TEST(SavePlan, FollowsSplitsPaddingAndPartitions) {
  const layout::Mesh mesh = layout::parse_mesh("dp=3 tp=2");
  const auto place = [](layout::Placing& placing) { placing.split(1, "tp").partition({"dp"}, 4); };
  const auto holdings = hold(mesh, {{"w", {37, 10}}}, place);
  expect_each_once(plan_save(holdings), holdings);
  const auto padded = hold(mesh, {{"v", {37, 10}}}, [](layout::Placing& placing) { placing.split_padded("tp", 40); });
  expect_each_once(plan_save(padded, 16), padded);
}

TEST(SavePlan, SaysWhatNobodyHolds) {
  const layout::Mesh mesh = layout::parse_mesh("dp=2");
  auto holdings = hold(mesh, {{"w", {4, 4}}}, [](layout::Placing& placing) { placing.split(0, "dp"); });
  holdings[1].clear();
  EXPECT_THROW(plan_save(holdings), InternalError);
}

TEST(SavePlan, HoldingsTravelAsText) {
  const layout::Mesh mesh = layout::parse_mesh("dp=2 tp=2");
  const auto holdings = hold(mesh, {{"w\"x", {8, 4}}}, [](auto& placing) { placing.split(0, "tp").partition({"dp"}); });
  const auto back = parse_holdings(holdings_text(holdings[3]));
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].placement.name, "w\"x");
  EXPECT_EQ(layout::runs(back[0].placement), layout::runs(holdings[3][0].placement));
}

}  // namespace
}  // namespace trireme::checkpoint
