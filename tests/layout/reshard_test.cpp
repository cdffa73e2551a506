#include "trireme/layout/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "tests/layout/random_layouts.h"
#include "trireme/base/error.h"
#include "trireme/layout/coverage.h"

namespace trireme::layout {
namespace {

using testing::HasSubstr;

/// Per rank: each element of memory holds its global index, padding holds -1.
using Memories = std::vector<std::vector<Index>>;

Memories filled(const std::vector<Placement>& placements) {
  Memories memories;
  for (const Placement& placement : placements) memories.push_back(plain_elements(placement));
  return memories;
}

/// Walks the plan with real arrays; fails where an element is written twice or a copy could have been merged.
Memories applied(const ReshardPlan& plan, const Memories& from, const std::vector<Placement>& to) {
  Memories memories;
  for (const Placement& placement : to) memories.emplace_back(static_cast<std::size_t>(local_elements(placement)), -1);
  std::pair<int, int> last{-1, -1};
  for (const ReshardTransfer& transfer : plan.transfers) {
    EXPECT_LT(last, std::pair(transfer.target, transfer.source));
    last = {transfer.target, transfer.source};
    const Copy* before = nullptr;
    for (const Copy& copy : transfer.copies) {
      EXPECT_GT(copy.count, 0);
      if (before != nullptr) {
        EXPECT_LE(before->to + before->count, copy.to);
        EXPECT_FALSE(before->to + before->count == copy.to && before->from + before->count == copy.from);
      }
      before = &copy;
      for (Index i = 0; i < copy.count; ++i) {
        Index& target =
            memories.at(static_cast<std::size_t>(transfer.target)).at(static_cast<std::size_t>(copy.to + i));
        EXPECT_EQ(target, -1);
        target = from.at(static_cast<std::size_t>(transfer.source)).at(static_cast<std::size_t>(copy.from + i));
      }
    }
  }
  return memories;
}

/// What any plan has to do, found element by element.
struct Need {
  std::size_t lacking = 0;    ///< elements that a target has to get from another rank
  std::size_t most_sent = 0;  ///< by the busiest source, at least: a set of ranks sends what only they have
  bool nested = true;         ///< sets of ranks that hold an element are disjoint or nested
};

Need plain_need(const std::vector<Placement>& from, const std::vector<Placement>& to) {
  using Ranks = std::uint64_t;  // a bit each
  std::map<Index, Ranks> holders;
  for (std::size_t rank = 0; rank < from.size(); ++rank) {
    for (const Index element : plain_elements(from[rank])) holders[element] |= Ranks{1} << rank;
  }
  Need need;
  std::map<Ranks, std::size_t> wanted;
  for (std::size_t rank = 0; rank < to.size(); ++rank) {
    for (const Index element : plain_elements(to[rank])) {
      if (element < 0 || (holders[element] >> rank & 1) != 0) continue;
      ++need.lacking;
      ++wanted[holders[element]];
    }
  }
  for (const auto& [outer, unused] : wanted) {
    std::size_t sum = 0;
    for (const auto& [inner, count] : wanted) {
      const Ranks both = inner & outer;
      need.nested = need.nested && (both == 0 || both == inner || both == outer);
      if (both == inner) sum += count;
    }
    const auto ranks = static_cast<std::size_t>(std::popcount(outer));
    need.most_sent = std::max(need.most_sent, (sum + ranks - 1) / ranks);
  }
  return need;
}

TEST(Reshard, MovesEveryElementOnceBetweenRandomLayoutsAndBack) {
  int pairs = 0, shared = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed + 1000);
    const Shape shape = random_shape(dice);
    if (elements(shape) > 600) continue;
    const Mesh here = random_mesh(dice), there = random_mesh(dice);
    const auto one = place_all(here, shape, random_build(dice, here, shape));
    const auto two = place_all(there, shape, random_build(dice, there, shape));
    for (const auto& [from, to] : {std::pair(one, two), std::pair(two, one)}) {
      const Need need = plain_need(from, to);
      const ReshardPlan whole = plan_reshard(from, to, 4);
      EXPECT_EQ(applied(whole, filled(from), to), filled(to));
      EXPECT_EQ(volume(whole).moved_bytes, 4 * need.lacking);

      const ReshardPlan even = plan_reshard(from, to, 4, {.sent_bytes = {}, .grain_bytes = 4});
      EXPECT_EQ(applied(even, filled(from), to), filled(to));
      EXPECT_EQ(volume(even).moved_bytes, 4 * need.lacking);
      EXPECT_GE(volume(even).most_sent_bytes, 4 * need.most_sent);
      if (need.nested) {
        EXPECT_EQ(volume(even).most_sent_bytes, 4 * need.most_sent);
      }
      ++pairs;
      shared += need.nested && volume(even).most_sent_bytes < volume(whole).most_sent_bytes ? 1 : 0;
    }
  }
  EXPECT_GE(pairs, 300);
  EXPECT_GE(shared, 20);  // the bound was not met only because there was nothing to share
}

TEST(Reshard, IntoTheSameLayoutMovesNothing) {
  const Mesh mesh = parse_mesh("dp=2 tp=2");
  const auto placements = place_all(mesh, "w", {4, 6}, [](Placing& p) { p.split(1, "tp").partition({"dp"}); });
  EXPECT_EQ(volume(plan_reshard(placements, placements, 2)),
            (ReshardVolume{.kept_bytes = 48, .moved_bytes = 0, .most_sent_bytes = 0, .messages = 0, .copies = 4}));
}

TEST(Reshard, SharesTheTargetsBetweenTheCopies) {
  // Four copies on ranks 0 to 3; ranks 4 to 11 come new and want everything: each copy serves two, whole.
  const auto from = place_all(parse_mesh("dp=4"), "w", {8}, [](Placing&) {});
  const auto to = place_all(parse_mesh("dp=12"), "w", {8}, [](Placing&) {});
  std::map<int, int> served;
  for (const ReshardTransfer& transfer : plan_reshard(from, to, 4, {.sent_bytes = {}, .grain_bytes = 16}).transfers) {
    EXPECT_TRUE(transfer.target >= 4 || transfer.source == transfer.target);
    if (transfer.target >= 4) ++served[transfer.source];
  }
  EXPECT_EQ(served, (std::map<int, int>{{0, 2}, {1, 2}, {2, 2}, {3, 2}}));
}

TEST(Reshard, OneNewRankIsFedByAllCopies) {
  const auto from = place_all(parse_mesh("dp=4"), "w", {1 << 20}, [](Placing&) {});
  const auto to = place_all(parse_mesh("dp=5"), "w", {1 << 20}, [](Placing&) {});
  const ReshardVolume large = volume(plan_reshard(from, to, 2));
  EXPECT_EQ(large.messages, 4U);
  EXPECT_EQ(large.most_sent_bytes, large.moved_bytes / 4);
  // A small tensor is not worth four messages, a middling one is worth two.
  EXPECT_EQ(volume(plan_reshard(from, to, 2, {.sent_bytes = {}, .grain_bytes = 4 << 20})).messages, 1U);
  EXPECT_EQ(volume(plan_reshard(from, to, 2, {.sent_bytes = {}, .grain_bytes = 1 << 20})).messages, 2U);
}

TEST(Reshard, SparesARankThatAloneHasSomethingElse) {
  // Grouped queries: rows 0 and 1 of q on rank 0 alone, 2 and 3 on rank 1 alone, both rows of k on both. A new rank
  // that wants the first half of q, and k, must get k from rank 1.
  const std::vector<Block> blocks{{4, 2}, {2, 1}};
  const auto from = place_all(parse_mesh("tp=2"), "qk", {6}, [&](Placing& p) { p.split_blocks(0, "tp", blocks); });
  std::vector<Placement> to(3, {.name = "qk", .shape = {6}, .pieces = {}, .partition = {}});
  to[2].pieces = {{.box = {.begin = {0}, .end = {2}}}, {.box = {.begin = {4}, .end = {6}}}};
  EXPECT_EQ(to_text(plan_reshard(from, to, 1, {.sent_bytes = {}, .grain_bytes = 1})),
            "qk: 0 elements stay on their rank, 4 move in 2 messages\n"
            "  0 -> 2: [0,2) to [0,2)\n"
            "  1 -> 2: [2,4) to [2,4)\n");
}

TEST(Reshard, SmallTensorsTakeTurnsWhenWhatWasSentIsCarriedAlong) {
  const auto from = place_all(parse_mesh("dp=3"), "w", {5}, [](Placing&) {});
  const auto to = place_all(parse_mesh("dp=4"), "w", {5}, [](Placing&) {});
  Sharing sharing;
  std::vector<int> sources;
  for (const std::size_t element_bytes : {4, 2, 8, 2, 4}) {
    const ReshardPlan plan = plan_reshard(from, to, element_bytes, sharing);
    EXPECT_EQ(volume(plan).messages, 1U);
    sources.push_back(plan.transfers.back().source);
    add_sent(plan, sharing.sent_bytes);
  }
  EXPECT_EQ(sources, (std::vector<int>{0, 1, 2, 1, 0}));
  EXPECT_EQ(sharing.sent_bytes, (std::vector<std::size_t>{40, 20, 40}));
}

TEST(Reshard, PrintsWhatMoves) {
  const auto from = place_all(parse_mesh("tp=2"), "w", {2, 4}, [](Placing& p) { p.split(1, "tp"); });
  const auto to = place_all(parse_mesh("tp=2"), "w", {2, 4}, [](Placing& p) { p.split(0, "tp"); });
  EXPECT_EQ(to_text(plan_reshard(from, to, 4)),
            "w: 4 elements stay on their rank, 4 move in 2 messages\n"
            "  0 -> 0: [0,2) to [0,2)\n"
            "  1 -> 0: [0,2) to [2,4)\n"
            "  0 -> 1: [2,4) to [0,2)\n"
            "  1 -> 1: [2,4) to [2,4)\n");
  const auto one = place_all(Mesh(), "w", {2, 4}, [](Placing&) {});
  EXPECT_EQ(to_text(plan_reshard(from, one, 4), 1),
            "w: 4 elements stay on their rank, 4 move in 1 message\n"
            "  0 -> 0: [0,2) to [0,2) and 1 more\n"
            "  1 -> 0: [0,2) to [2,4) and 1 more\n");
}

TEST(Reshard, CostsByRunsAndNotByElements) {
  // 2^37 elements: walking them would take minutes. Rows to ZeRO partitions of columns and vocabulary padding.
  const Shape shape{Index{1} << 20, Index{1} << 17};
  const Mesh here = parse_mesh("dp=8 tp=8"), there = parse_mesh("dp=4 tp=4");
  const auto from =
      place_all(here, "w", shape, [&](Placing& p) { p.split_padded("tp", shape[0] + 64).partition({"dp"}); });
  const auto to = place_all(there, "w", {shape}, [](Placing& p) { p.split(0, "tp"); });
  EXPECT_EQ(find_problem(here, from), "");
  EXPECT_EQ(find_problem(there, to), "");
  const ReshardVolume total = volume(plan_reshard(from, to, 2));
  EXPECT_EQ(total.kept_bytes + total.moved_bytes, std::size_t{2} * 4 << 37);
  EXPECT_LT(total.copies, 1000U);
  const Shape square{4096, 4096};
  const auto columns = place_all(here, "w", square, [](Placing& p) { p.split(1, "tp"); });
  const auto rows = place_all(there, "w", square, [](Placing& p) { p.split(0, "tp").partition({"dp"}, 128); });
  EXPECT_EQ(find_problem(here, columns), "");
  EXPECT_LE(volume(plan_reshard(columns, rows, 2)).copies, 8U * 4096);
}

TEST(Reshard, NamesWhatNobodyHas) {
  const auto two = place_all(parse_mesh("tp=2"), "w", {4, 3}, [](Placing& p) { p.split(0, "tp"); });
  const auto one = place_all(Mesh(), "w", {4, 3}, [](Placing&) {});
  try {
    plan_reshard(std::span(two).first(1), one, 4);
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "element [2, 0] of w is wanted by rank 0, but held by none of the 1 sources");
    EXPECT_THAT(error.hint(), HasSubstr("all ranks"));
  }
  EXPECT_NO_THROW(plan_reshard(two, one, 4));
  const auto other = place_all(Mesh(), "v", {4, 4}, [](Placing&) {});
  try {
    plan_reshard(two, other, 4);
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "w (4 x 3) cannot become v (4 x 4): the shapes differ");
    EXPECT_EQ(error.hint(), "place a tensor of shape (4 x 3)");
  }
}

}  // namespace
}  // namespace trireme::layout
