#include "trireme/layout/reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/layout/coverage.h"
#include "trireme/layout/placing.h"

namespace trireme::layout {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Eight experts on dp%2: each rank has half of them, and copies along dp/2.
TEST(Reduction, OfExpertsGoesOverFewerRanksThanOfDenseOnes) {
  const Mesh mesh = parse_mesh("dp=4 tp=2");
  const auto experts = place_all(mesh, "experts", {8, 3}, [](Placing& p) { p.split(0, "dp%2").split(1, "tp"); });
  const auto router = place_all(mesh, "router", {8, 3}, [](Placing&) {});
  EXPECT_EQ(find_problem(mesh, experts), "");
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    EXPECT_THAT(shared_reduction_axes(mesh, experts[at]), ElementsAre("dp/2"));
    EXPECT_THAT(split_axes(mesh, experts[at]), ElementsAre("dp%2", "tp"));
    EXPECT_THAT(shared_reduction_axes(mesh, router[at], {"tp"}), ElementsAre("dp"));
    EXPECT_THAT(split_axes(mesh, router[at]), IsEmpty());
  }
  const auto shards = place_all(mesh, "experts", {8, 4}, [](Placing& p) { p.split(0, "dp%2").partition({"dp/2"}); });
  EXPECT_THAT(reduction_axes(mesh, shards[0]), ElementsAre(Reduction{{0, 8}, {"dp/2", "tp"}}));
  EXPECT_THAT(split_axes(mesh, shards[0]), ElementsAre("dp"));
}

TEST(Reduction, OfAPartOfAnAxisEndsWhereCopiesAreEqual) {
  const Mesh mesh = parse_mesh("dp=2 tp=4");
  const std::vector<Block> blocks{{8, 4}, {4, 2}};  // two heads of keys for four ranks
  const auto fused = place_all(mesh, "wqk", {12, 3}, [&](Placing& p) { p.split_blocks(0, "tp", blocks); });
  EXPECT_THAT(reduction_axes(mesh, fused[1], {"tp"}), ElementsAre(Reduction{{0, 12}, {"dp"}}));
  EXPECT_THAT(shared_reduction_axes(mesh, fused[1]), ElementsAre("dp")) << "of the queries there are no copies in tp";
  EXPECT_THAT(split_axes(mesh, fused[1]), ElementsAre("tp"));
}

TEST(Reduction, IsTheSameForRanksThatHoldNothing) {
  const Mesh mesh = parse_mesh("dp=2 tp=4");
  const auto rows = place_all(mesh, "w", {3}, [](Placing& p) { p.split(0, "tp"); });
  for (const Placement& placement : rows) EXPECT_THAT(shared_reduction_axes(mesh, placement), ElementsAre("dp"));
}

/// Other stages have other parameters: no part of this one.
TEST(Reduction, LeavesOutStages) {
  const Mesh mesh = parse_mesh("pp=2 dp=2 tp=2");
  const Placement mine = Placing(mesh, 5, "w", {4, 2}).only_at("pp", 1).split(0, "tp").placement();
  EXPECT_THAT(split_axes(mesh, mine), ElementsAre("tp"));
  EXPECT_THAT(shared_reduction_axes(mesh, mine), ElementsAre("dp"));
}

/// What each copy keeps for itself covers one tensor with a row for each copy.
TEST(Reduction, StacksWhatCopiesKeepForThemselves) {
  const Mesh mesh = parse_mesh("dp=4 tp=2");
  std::vector<Placement> stacked;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const Placement experts = Placing(mesh, rank, "w", {6, 4}).split(0, "dp%2").placement();
    stacked.push_back(stack_copies(mesh, rank, experts, {"dp/2"}));
  }
  EXPECT_EQ(find_problem(mesh, stacked), "");
  EXPECT_EQ(to_text(stacked[6]), "w (2 x 6 x 4): [1:2, 3:6, 0:4] copies along tp");
}

}  // namespace
}  // namespace trireme::layout
