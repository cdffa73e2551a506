// Every algorithm in the table does what its operation asks for: proved on symbols for every rank count from 1 to 17.
#include "trireme/comm/routine.h"

#include <gtest/gtest.h>

#include "tests/comm/routine_shapes.h"
#include "trireme/comm/routine_check.h"

namespace trireme::comm {
namespace {

constexpr int kMostRanks = 17;

class EveryAlgorithm : public testing::TestWithParam<AlgorithmEntry> {
 protected:
  /// Tries the shapes with several roots.
  void expect_right(std::vector<Shape> shapes) {
    const int ranks = shapes.front().ranks;
    std::set<int> roots{0};
    if (has_root(shapes.front().op)) roots = {0, ranks / 2, ranks - 1};
    for (const int root : roots) {
      for (Shape& shape : shapes) shape.root = root;
      const auto faults = check_algorithm(GetParam(), shapes);
      ASSERT_TRUE(faults.empty()) << describe(shapes.front()) << "\n" << fmt::format("{}", fmt::join(faults, "\n"));
    }
  }

  bool on_nodes() const { return GetParam().algorithm == Algorithm::kHierarchical; }
  /// Placements to try: for the algorithms that do not look at nodes, none.
  std::vector<std::vector<int>> plans(int ranks) const {
    return on_nodes() ? node_plans(ranks) : std::vector<std::vector<int>>{{}};
  }

  void expect_right_on_all_nodes(std::vector<Shape> shapes) {
    for (const auto& plan : plans(shapes.front().ranks)) {
      for (Shape& shape : shapes) shape.node_of = plan;
      expect_right(shapes);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_P(EveryAlgorithm, GivesTheRightResultForEverySizeAndRankCount) {
  const Collective op = GetParam().op;
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    const auto p = static_cast<std::size_t>(ranks);
    std::set<std::size_t> sizes{0, 1, 2, 5, p - 1, p, p + 1, 2 * kSegment * p + 3};
    if (has_blocks(op)) sizes = {0, 1, 3, 2 * kSegment + 1};
    if (op == Collective::kBarrier) sizes = {0};
    for (const std::size_t size : sizes) {
      expect_right_on_all_nodes(plain_shapes(op, ranks, size));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(EveryAlgorithm, GivesTheRightResultForUnevenBlocks) {
  const Collective op = GetParam().op;
  if (!has_blocks(op)) return;
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (const int pattern : {0, 1, 2}) {
      expect_right_on_all_nodes(uneven_shapes(op, ranks, pattern));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(EveryAlgorithm, GivesTheRightResultForManyRanks) {
  for (const int ranks : {33, 64}) {
    auto shapes = plain_shapes(GetParam().op, ranks, has_blocks(GetParam().op) ? 2 : 70);
    for (Shape& shape : shapes)
      for (int rank = 0; rank < ranks && on_nodes(); ++rank) shape.node_of.push_back(rank / 8);
    expect_right(shapes);
  }
}

TEST_P(EveryAlgorithm, IsFoundByNameAndServesSomeShape) {
  const AlgorithmEntry& entry = GetParam();
  const AlgorithmEntry* found = find_algorithm(entry.op, entry.algorithm);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->build, entry.build);
  Shape shape = plain_shapes(entry.op, 8, 16).front();
  shape.node_of = {0, 0, 0, 0, 1, 1, 1, 1};
  EXPECT_EQ(entry.refuses(shape), "");
}

std::string routine_test_name(const testing::TestParamInfo<AlgorithmEntry>& info) {
  return fmt::format("{}_{}", cost::name(info.param.algorithm), cost::name(info.param.op));
}
INSTANTIATE_TEST_SUITE_P(Table, EveryAlgorithm, testing::ValuesIn(algorithm_table().begin(), algorithm_table().end()),
                         routine_test_name);

TEST(AlgorithmTable, HasAtLeastOneAlgorithmThatNeverRefusesForEveryOperation) {
  for (const Collective op : cost::all_collectives()) {
    bool served = false;
    for (const AlgorithmEntry& entry : algorithm_table()) {
      if (entry.op != op) continue;
      bool always = true;
      for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
        always = always && entry.refuses(plain_shapes(op, ranks, 4).front()).empty();
        if (has_blocks(op)) always = always && entry.refuses(uneven_shapes(op, ranks, 0).front()).empty();
      }
      served = served || always;
    }
    EXPECT_TRUE(served) << cost::name(op);
  }
}

TEST(AlgorithmTable, SaysWhyAShapeIsRefused) {
  const auto refusal = [](const Shape& shape, Algorithm algorithm) {
    return find_algorithm(shape.op, algorithm)->refuses(shape);
  };
  EXPECT_EQ(refusal(plain_shapes(Collective::kAllGather, 6, 1).front(), Algorithm::kRecursiveDoubling),
            "recursive doubling gathers among a power of two of ranks, not 6; use bruck or ring");
  EXPECT_EQ(refusal(uneven_shapes(Collective::kAllGather, 4, 2).front(), Algorithm::kBruck),
            "bruck needs blocks of one length; they have 0 to 3 elements");
  EXPECT_EQ(refusal(plain_shapes(Collective::kAllReduce, 4, 1).front(), Algorithm::kHierarchical),
            "all ranks are on one node, so there are no two levels");
  EXPECT_EQ(find_algorithm(Collective::kAllReduce, Algorithm::kBruck), nullptr);
}

TEST(RingAllReduce, OnTwoRanksIsTheTextbookRoutine) {
  const auto routines =
      build_all(*find_algorithm(Collective::kAllReduce, Algorithm::kRing), plain_shapes(Collective::kAllReduce, 2, 5));
  EXPECT_EQ(to_text(routines[0]),
            "0: recv_reduce out[0,3) = in[0,3) + from 1\n"
            "1: send in[3,5) to 1\n"
            "2: wait 1\n"
            "3: recv out[3,5) from 1\n"
            "4: wait 0\n"
            "5: finish out[0,3)\n"
            "6: send out[0,3) to 1\n"
            "7: wait 3\n"
            "8: wait 6\n");
}

TEST(RingAllReduce, OnThreeRanksPassesEachSegmentOnAsSoonAsItIsCombined) {
  const auto routines =
      build_all(*find_algorithm(Collective::kAllReduce, Algorithm::kRing), plain_shapes(Collective::kAllReduce, 3, 18));
  const std::string text = to_text(routines[0]);
  // Blocks of six elements, segments of four: the receives of the second step are posted, then each segment of the
  // first leaves when it has come in, not when all have. The gathering's first receive is posted as soon as what lies
  // there, in place, has left.
  EXPECT_EQ(text.substr(0, text.find("12:")),
            "0: recv_reduce out[6,10) = in[6,10) + from 2\n"
            "1: recv_reduce out[10,12) = in[10,12) + from 2\n"
            "2: send in[12,16) to 1\n"
            "3: send in[16,18) to 1\n"
            "4: recv_reduce out[0,4) = in[0,4) + from 2\n"
            "5: recv_reduce out[4,6) = in[4,6) + from 2\n"
            "6: wait 0\n"
            "7: send out[6,10) to 1\n"
            "8: wait 1\n"
            "9: send out[10,12) to 1\n"
            "10: wait 2\n"
            "11: recv out[12,16) from 2\n");
}

}  // namespace
}  // namespace trireme::comm
