#include "trireme/layout/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/layout/random_layouts.h"
#include "trireme/base/error.h"
#include "trireme/layout/coverage.h"
#include "trireme/layout/reduction.h"

namespace trireme::layout {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint64_t kLayouts = 400;

/// Whether every element is held, by nobody twice, and by exactly the ranks that each holder's axes say.
bool plainly_right(const Mesh& mesh, const std::vector<Placement>& placements) {
  std::map<Index, std::vector<int>> ranks_of;
  std::map<Index, std::vector<AxisNames>> axes_of;
  for (std::size_t rank = 0; rank < placements.size(); ++rank) {
    const std::vector<Index> memory = plain_elements(placements[rank]);
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (memory[i] < 0) continue;
      ranks_of[memory[i]].push_back(static_cast<int>(rank));
      axes_of[memory[i]].push_back(piece_at(placements[rank], static_cast<Index>(i))->replica_axes);
    }
  }
  for (const auto& [element, ranks] : ranks_of) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (mesh.group(ranks[i], axes_of[element][i]) != ranks) return false;
    }
  }
  return static_cast<Index>(ranks_of.size()) == elements(placements.front().shape);
}

void expect_as_plain(const Placement& placement) {
  const std::vector<Index> memory = plain_elements(placement);
  ASSERT_EQ(local_elements(placement), static_cast<Index>(memory.size()));
  std::map<Index, Index> place_of;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const auto local = static_cast<Index>(i);
    const std::optional<Index> global = global_index(placement, local);
    EXPECT_EQ(global.value_or(-1), memory[i]);
    if (global) place_of[*global] = local;
  }
  EXPECT_EQ(held_elements(placement), static_cast<Index>(place_of.size()));
  EXPECT_EQ(global_index(placement, local_elements(placement)), std::nullopt);
  for (Index global = -1; global <= elements(placement.shape); ++global) {
    const auto known = place_of.find(global);
    EXPECT_EQ(local_index(placement, global).value_or(-1), known == place_of.end() ? -1 : known->second);
  }
  std::vector<Index> by_runs(memory.size(), -1), by_ranges, held;
  Index end = 0;
  for (const ContiguousRun& run : runs(placement)) {
    EXPECT_GE(run.local, end);
    end = run.local + run.count;
    for (Index i = 0; i < run.count; ++i) by_runs[static_cast<std::size_t>(run.local + i)] = run.global + i;
  }
  EXPECT_EQ(by_runs, memory);
  Index last = -1;
  for (const Range& range : held_ranges(placement)) {
    EXPECT_GT(range.begin, last) << "ranges that touch are one";
    EXPECT_GT(range.end, range.begin);
    last = range.end;
    for (Index i = range.begin; i < range.end; ++i) by_ranges.push_back(i);
  }
  for (const auto& [global, local] : place_of) held.push_back(global);
  EXPECT_EQ(by_ranges, held);
}

TEST(Placement, EqualsTheListOfItsElements) {
  for (std::uint64_t seed = 0; seed < kLayouts; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    const Mesh mesh = random_mesh(dice);
    const Shape shape = random_shape(dice);
    if (elements(shape) > 600) continue;
    const std::vector<Placement> placements = place_all(mesh, shape, random_build(dice, mesh, shape));
    expect_as_plain(placements[static_cast<std::size_t>(dice.below(mesh.ranks()))]);
    expect_as_plain(placements.back());
  }
}

TEST(Placement, OfAllRanksHoldsEveryElementWithCopiesAlongTheReplicaAxes) {
  int broken = 0;
  for (std::uint64_t seed = 0; seed < kLayouts; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    const Mesh mesh = random_mesh(dice);
    const Shape shape = random_shape(dice);
    if (elements(shape) > 600) continue;
    std::vector<Placement> placements = place_all(mesh, shape, random_build(dice, mesh, shape));
    EXPECT_TRUE(plainly_right(mesh, placements));
    EXPECT_EQ(find_problem(mesh, placements), "") << to_text(mesh);
    std::vector<int> holders(static_cast<std::size_t>(elements(shape)));
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      for (const layout::ContiguousRun& run : first_copy_runs(mesh, rank, placements[static_cast<std::size_t>(rank)])) {
        for (Index i = 0; i < run.count; ++i) ++holders[static_cast<std::size_t>(run.global + i)];
      }
    }
    EXPECT_THAT(holders, testing::Each(1));

    // Broken somewhere, the fast check and the plain one say the same.
    Placement& victim = placements[static_cast<std::size_t>(dice.below(mesh.ranks()))];
    if (victim.pieces.empty()) continue;
    Piece& piece = victim.pieces[static_cast<std::size_t>(dice.below(static_cast<int>(victim.pieces.size())))];
    const int how = dice.below(4);
    if (how == 0) victim.pieces.push_back(piece);
    if (how == 1 && !shape.empty() && piece.box.end[0] > piece.box.begin[0]) --piece.box.end[0];
    if (how == 2) piece.replica_axes.clear();
    if (how == 3) piece.padding += 1;
    EXPECT_EQ(find_problem(mesh, placements).empty(), plainly_right(mesh, placements)) << how;
    broken += plainly_right(mesh, placements) ? 0 : 1;
  }
  EXPECT_GT(broken, 50);
}

TEST(Placement, OfFusedGroupedQueriesCopiesHeadsOnNeighbours) {
  // Four query heads and two of k and v each, two rows a head, over four ranks.
  const Mesh mesh = parse_mesh("dp=2 tp=4");
  const std::vector<Block> blocks{{8, 4}, {4, 2}, {4, 2}};
  const auto placements = place_all(mesh, "wqkv", {16, 3}, [&](Placing& p) { p.split_blocks(0, "tp", blocks); });
  EXPECT_EQ(find_problem(mesh, placements), "");
  EXPECT_EQ(
      to_text(placements[1]),
      "wqkv (16 x 3): [2:4, 0:3] copies along dp, [8:10, 0:3] copies along dp tp%2, [12:14, 0:3] copies along dp tp%2");
  EXPECT_EQ(to_text(placements[2]),
            "wqkv (16 x 3): [4:6, 0:3] copies along dp, [10:12, 0:3] copies along dp tp%2, [14:16, 0:3] copies along "
            "dp tp%2");
  EXPECT_THAT(reduction_axes(mesh, placements[2]),
              ElementsAre(Reduction{{0, 6}, {"dp"}}, Reduction{{6, 18}, {"dp", "tp%2"}}));
  EXPECT_THAT(mesh.group(2, {"dp", "tp%2"}), ElementsAre(2, 3, 6, 7));
}

TEST(Placement, OfPaddedVocabularyLeavesThePaddingOut) {
  const Mesh mesh = parse_mesh("dp=2 tp=4");
  const auto placements = place_all(mesh, "embedding", {10, 2}, [](Placing& p) { p.split_padded("tp", 16); });
  EXPECT_EQ(find_problem(mesh, placements), "");
  EXPECT_EQ(to_text(placements[2]), "embedding (10 x 2): [8:10, 0:2] + 4 padding copies along dp");
  EXPECT_EQ(to_text(placements[3]), "embedding (10 x 2): [10:10, 0:2] + 8 padding copies along dp");
  EXPECT_EQ(local_elements(placements[3]), 8);
  EXPECT_EQ(held_elements(placements[3]), 0);
}

TEST(Placement, OfZeroPartitionsSaysWhoSumsAndWhoKeeps) {
  const Mesh mesh = parse_mesh("dp=4 tp=2");
  const auto whole = place_all(mesh, "w", {6, 5}, [](Placing& p) { p.split(1, "tp").partition({"dp"}, 4); });
  EXPECT_EQ(find_problem(mesh, whole), "");
  EXPECT_EQ(to_text(whole[7]), "w (6 x 5): [0:6, 2:5], elements 24:32 of that along dp");
  EXPECT_THAT(reduction_axes(mesh, whole[0]), ElementsAre(Reduction{{0, 4}, {"dp"}}));
  // Sharded within two ranks, copied across: the sum still goes over all four.
  const auto hybrid = place_all(mesh, "w", {6, 5}, [](Placing& p) { p.split(1, "tp").partition({"dp%2"}); });
  EXPECT_EQ(find_problem(mesh, hybrid), "");
  EXPECT_THAT(reduction_axes(mesh, hybrid[0]), ElementsAre(Reduction{{0, 6}, {"dp"}}));
  const auto norm = place_all(mesh, "norm", {6}, [](Placing&) {});
  EXPECT_THAT(reduction_axes(mesh, norm[0]), ElementsAre(Reduction{{0, 6}, {"dp", "tp"}}));
  EXPECT_THAT(reduction_axes(mesh, norm[0], {"tp"}), ElementsAre(Reduction{{0, 6}, {"dp"}}));
}

TEST(Placement, ProblemsNameTheFirstElement) {
  const Mesh mesh = parse_mesh("dp=2 tp=2");
  const auto split = [](Placing& p) { p.split(0, "tp"); };
  auto missing = place_all(mesh, "w", {4, 3}, split);
  missing[1].pieces[0].box.begin[0] = missing[3].pieces[0].box.begin[0] = 3;
  EXPECT_EQ(find_problem(mesh, missing), "element [2, 0] of w is held by no rank");
  auto lonely = place_all(mesh, "w", {4, 3}, split);
  lonely[3].pieces.clear();
  EXPECT_EQ(find_problem(mesh, lonely),
            "element [2, 0] of w is held by ranks 1, but rank 1 says that copies are along dp: ranks 1 3");
  auto twice = place_all(mesh, "w", {4, 3}, split);
  twice[2].pieces.push_back({.box = {{1, 1}, {2, 2}}, .padding = 0, .replica_axes = {"dp"}});
  EXPECT_EQ(find_problem(mesh, twice), "element [1, 1] of w is held twice by rank 2");
  auto outside = place_all(mesh, "w", {4, 3}, split);
  outside[2].pieces[0].box.end[1] = 4;
  EXPECT_THAT(find_problem(mesh, outside), HasSubstr("rank 2 holds a box that is not inside the tensor"));
}

struct Refusal {
  Build wrong, hinted;
  std::string what, hint;
};

TEST(Placing, RefusesWithAHintThatWorks) {
  const Mesh mesh = parse_mesh("dp=2 tp=4");
  const auto blocks = [](std::vector<Block> list) { return [list](Placing& p) { p.split_blocks(0, "tp", list); }; };
  const auto split = [](std::size_t d, std::string axis) { return [=](Placing& p) { p.split(d, axis); }; };
  const auto pad = [](Index rows) { return [=](Placing& p) { p.split_padded("tp", rows); }; };
  const std::vector<Refusal> refusals{
      {{split(2, "tp")}, {split(1, "tp")}, "w (12 x 5): there is no dimension 2 to split", "split dimension 1"},
      {{split(0, "tp"), split(1, "tp")},
       {split(0, "tp"), split(1, "dp")},
       "axis tp is used already: what is left is dp",
       "use dp"},
      {{blocks({{8, 4}, {3, 1}})},
       {blocks({{8, 4}, {4, 1}})},
       "w (12 x 5): the blocks have 11 rows together, dimension 0 has 12",
       "make the last block 4 rows"},
      {{blocks({{12, 5}})},
       {blocks({{12, 12}})},
       "w (12 x 5): a block of 12 rows is not made of 5 equal units",
       "use 12 units"},
      {{blocks({{12, 3}})},
       {},
       "w (12 x 5): 3 units are fewer than the 4 ranks of axis tp and do not divide them",
       "use tp = 3"},
      {{pad(14)},
       {pad(16)},
       "w (12 x 5): 12 rows padded to 14 cannot be split evenly over the 4 ranks of axis tp",
       "pad to 16"},
      {{pad(16), split(1, "dp")},
       {split(1, "dp"), pad(16)},
       "w (12 x 5): dimension 1 is split after padding",
       "split first, then pad"},
      {{[](Placing& p) { p.partition({"dp"}, 0); }},
       {[](Placing& p) { p.partition({"dp"}, 1); }},
       "w (12 x 5): parts cannot be multiples of 0 elements",
       "use 1"},
      {{[](Placing& p) { p.only_at("dp", 2); }},
       {[](Placing& p) { p.only_at("dp", 1); }},
       "w (12 x 5): axis dp has no coordinate 2; its size is 2",
       "use 1"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.what);
    try {
      place_all(mesh, Shape{12, 5}, refusal.wrong);
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.message(), refusal.what);
      EXPECT_EQ(error.hint(), refusal.hint);
    }
    EXPECT_EQ(find_problem(mesh, place_all(mesh, Shape{12, 5}, refusal.hinted)), "");
  }
  EXPECT_THROW(Placing(mesh, 0, "w", {-1}), ConfigError);
  EXPECT_THROW(Placing(mesh, 0, "w", {Index{1} << 40, Index{1} << 40}), ConfigError);
  EXPECT_EQ(elements({Index{1} << 40, 0, 3}), 0);
}

}  // namespace
}  // namespace trireme::layout
