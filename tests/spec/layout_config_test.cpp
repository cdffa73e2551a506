#include "trireme/spec/layout_config.h"

#include <gtest/gtest.h>

#include "tests/spec/contradiction.h"

namespace trireme::spec {
namespace {

TEST(Layout, AnAxisThatIsLeftOutIsWhatTheOthersLeave) {
  const Recipe recipe = load_recipe({.text = "[comm]\nranks = 16\n[layout]\ntp = 4\npp = 2\n"}).value;
  EXPECT_EQ(recipe.layout.ranks_per_copy(), 8);
  EXPECT_EQ(recipe.layout.dp, std::nullopt);
}

TEST(Layout, ThatDoesNotGiveTheRanksIsAContradiction) {
  expect_contradiction({"comm.ranks=8", "layout.tp=2", "layout.dp=2"},
                       {"layout", "tp 2 x pp 1 x cp 1 x dp 2 = 4, but comm.ranks = 8", "set comm.ranks = 4"},
                       {"comm.ranks=4"});
  expect_contradiction({"comm.ranks=9", "layout.tp=2"},
                       {"layout", "does not divide comm.ranks = 9", "set comm.ranks = 8"}, {"comm.ranks=8"});
}

TEST(Layout, ChunksNeedStagesAndSplitNormsNeedRanks) {
  expect_contradiction({"pipeline.virtual_stages=2"},
                       {"pipeline.virtual_stages", "there is a single stage", "set pipeline.virtual_stages = 1"},
                       {"pipeline.virtual_stages=1"});
  expect_contradiction({"layout.sequence_parallel=true"},
                       {"layout.sequence_parallel", "layout.tp, which is 1", "set layout.sequence_parallel = false"},
                       {"layout.sequence_parallel=false"});
  expect_contradiction({"layout.dp=6", "layout.zero_group=4"},
                       {"layout.zero_group", "4 does not divide layout.dp = 6", "set layout.zero_group = 6"},
                       {"layout.zero_group=6"});
}

}  // namespace
}  // namespace trireme::spec
