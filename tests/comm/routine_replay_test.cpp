// What routines send equals the papers' counts, and replaying them takes as long as the closed formulas say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/comm/routine_shapes.h"
#include "trireme/comm/routine_check.h"

namespace trireme::comm {
namespace {

constexpr cost::LinkCost kLink{.alpha = 5e-6, .beta = 1 / 25e9, .gamma = 1 / 200e9};
constexpr cost::LinkCost kAcross{.alpha = 20e-6, .beta = 1 / 10e9, .gamma = 1 / 200e9};

std::size_t replay_at(int index) { return static_cast<std::size_t>(index); }
std::size_t ceil_lg(std::size_t p) { return static_cast<std::size_t>(std::bit_width(p - 1)); }

/// Uncut, with `share` elements for each rank: the conditions under which the papers count.
std::vector<Shape> uncut_shapes(Collective op, int ranks, std::size_t share) {
  auto shapes = plain_shapes(op, ranks, has_blocks(op) ? share : share * replay_at(ranks));
  for (Shape& shape : shapes) shape.segment_bytes = std::size_t{1} << 40;
  return shapes;
}

/// Of the rank that sends most.
Volume busiest(Collective op, Algorithm algorithm, int ranks, std::size_t share) {
  Volume most;
  for (const Routine& routine : build_all(*find_algorithm(op, algorithm), uncut_shapes(op, ranks, share))) {
    const Volume one = volume(routine);
    most = {std::max(most.messages, one.messages), std::max(most.elements, one.elements),
            std::max(most.reduced, one.reduced)};
  }
  return most;
}

TEST(Volumes, OfTheRingAreThoseOfBaidu) {
  for (const int ranks : {1, 2, 3, 4, 5, 8, 9, 16, 17}) {
    const std::size_t p = replay_at(ranks), n = 6 * p;
    EXPECT_EQ(busiest(Collective::kAllReduce, Algorithm::kRing, ranks, 6),
              (Volume{2 * (p - 1), 2 * (p - 1) * n / p, (p - 1) * n / p}));
    EXPECT_EQ(busiest(Collective::kReduceScatter, Algorithm::kRing, ranks, 6),
              (Volume{p - 1, (p - 1) * n / p, (p - 1) * n / p}));
    EXPECT_EQ(busiest(Collective::kAllGather, Algorithm::kRing, ranks, 6), (Volume{p - 1, (p - 1) * n / p, 0}));
  }
}

TEST(Volumes, OfAllRanksTogetherDoNotGrowWhenBlocksDifferByOne) {
  // 2(p-1)n for all ranks together, whatever n mod p is (and for n < p as well).
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const std::size_t n : {0, 1, 3, 7, 20, 61}) {
      std::size_t sent = 0;
      for (const Routine& routine : build_all(*find_algorithm(Collective::kAllReduce, Algorithm::kRing),
                                              plain_shapes(Collective::kAllReduce, ranks, n)))
        sent += volume(routine).elements;
      EXPECT_EQ(sent, 2 * replay_at(ranks - 1) * n);
    }
  }
}

TEST(Volumes, AmongPowersOfTwoAreThoseOfThakurAndRabenseifner) {
  for (const int ranks : {2, 4, 8, 16}) {
    const std::size_t p = replay_at(ranks), n = 6 * p, lg = ceil_lg(p), rest = (p - 1) * n / p;
    EXPECT_EQ(busiest(Collective::kAllReduce, Algorithm::kRecursiveDoubling, ranks, 6), (Volume{lg, lg * n, lg * n}));
    EXPECT_EQ(busiest(Collective::kAllReduce, Algorithm::kHalvingDoubling, ranks, 6), (Volume{2 * lg, 2 * rest, rest}));
    EXPECT_EQ(busiest(Collective::kReduceScatter, Algorithm::kHalvingDoubling, ranks, 6), (Volume{lg, rest, rest}));
    EXPECT_EQ(busiest(Collective::kAllGather, Algorithm::kRecursiveDoubling, ranks, 6), (Volume{lg, rest, 0}));
    EXPECT_EQ(busiest(Collective::kReduce, Algorithm::kBinomial, ranks, 6), (Volume{1, n, lg * n}));
    EXPECT_EQ(busiest(Collective::kScatter, Algorithm::kBinomial, ranks, 6), (Volume{lg, rest, 0}));
    EXPECT_EQ(busiest(Collective::kBroadcast, Algorithm::kScatterAllGather, ranks, 6), (Volume{2 * lg, 2 * rest, 0}));
    EXPECT_EQ(busiest(Collective::kAllToAll, Algorithm::kBruck, ranks, 6), (Volume{lg, lg * n / 2, 0}));
  }
}

TEST(Volumes, ForAnyNumberOfRanksAreThoseOfThakur) {
  for (int ranks = 2; ranks <= 17; ++ranks) {
    const std::size_t p = replay_at(ranks), n = 6 * p, lg = ceil_lg(p), rest = (p - 1) * n / p;
    EXPECT_EQ(busiest(Collective::kAllGather, Algorithm::kBruck, ranks, 6), (Volume{lg, rest, 0}));
    EXPECT_EQ(busiest(Collective::kBroadcast, Algorithm::kBinomial, ranks, 6), (Volume{lg, lg * n, 0}));
    EXPECT_EQ(busiest(Collective::kReduceScatter, Algorithm::kPairwise, ranks, 6), (Volume{p - 1, rest, rest}));
    EXPECT_EQ(busiest(Collective::kAllToAll, Algorithm::kPairwise, ranks, 6), (Volume{p - 1, rest, 0}));
    EXPECT_EQ(busiest(Collective::kAllToAll, Algorithm::kLinear, ranks, 6), (Volume{p - 1, rest, 0}));
    EXPECT_EQ(busiest(Collective::kBarrier, Algorithm::kBruck, ranks, 0), (Volume{lg, 0, 0}));
  }
}

TEST(Volumes, OfRabenseifnersRoundsHalveAndReachTheNearestRanksFirst) {
  const auto shapes = uncut_shapes(Collective::kAllReduce, 8, 4);
  const Routine routine = find_algorithm(Collective::kAllReduce, Algorithm::kHalvingDoubling)->build(shapes[5], 5);
  std::vector<std::pair<int, std::size_t>> sent;
  for (const Step& step : routine.steps)
    if (step.act == Act::kSend) sent.emplace_back(step.peer ^ 5, step.from.count);
  EXPECT_THAT(sent, testing::ElementsAre(std::pair(1, 16), std::pair(2, 8), std::pair(4, 4), std::pair(4, 4),
                                         std::pair(2, 8), std::pair(1, 16)));
}

TEST(Volumes, AcrossNodesAreOneNthOfTheVectorWithNEqualRanksANode) {
  auto shapes = uncut_shapes(Collective::kAllReduce, 8, 4);
  for (Shape& shape : shapes) shape.node_of = {0, 0, 0, 0, 1, 1, 1, 1};
  for (int rank = 0; rank < 8; ++rank) {
    std::size_t across = 0;
    for (const Step& step :
         find_algorithm(Collective::kAllReduce, Algorithm::kHierarchical)->build(shapes[replay_at(rank)], rank).steps)
      if (step.act == Act::kSend && step.peer / 4 != rank / 4) across += step.from.count;
    EXPECT_EQ(across, 32u / 4);  // 2 (k-1)/k of a quarter, for k = 2 nodes
  }
}

class Replayed : public testing::TestWithParam<AlgorithmEntry> {};

TEST_P(Replayed, TakesAsLongAsTheFormulaSays) {
  const auto [algorithm, op, build, refuses] = GetParam();
  for (const int ranks : {2, 4, 8, 16}) {
    for (const std::size_t share : {1, 64, 100000}) {
      auto shapes = uncut_shapes(op, ranks, share);
      const double bytes =
          op == Collective::kBarrier ? 0.0 : static_cast<double>(share * replay_at(ranks) * kElementBytes);
      const bool nodes = algorithm == Algorithm::kHierarchical;
      for (int per_node = nodes ? 2 : ranks; per_node < (nodes ? ranks : 2 * ranks); per_node *= 2) {
        for (Shape& shape : shapes) {
          shape.node_of.clear();
          for (int rank = 0; rank < ranks; ++rank) shape.node_of.push_back(rank / per_node);
        }
        const auto routines = build_all(GetParam(), shapes);
        const double seconds = replay(routines, kElementBytes, [&](int from, int to) {
          return from / per_node == to / per_node ? kLink : kAcross;
        });
        const double predicted =
            cost::predict(op, algorithm, cost::Topology{ranks, ranks / per_node}, bytes, cost::Links{kLink, kAcross});
        EXPECT_NEAR(seconds / predicted, 1, 1e-9)
            << ranks << " ranks, " << per_node << " a node, " << bytes << " bytes: replayed " << seconds * 1e6
            << " us, predicted " << predicted * 1e6 << " us";
      }
    }
  }
}

TEST_P(Replayed, StaysNearTheFormulaForAnyNumberOfRanks) {
  // The formulas charge every rank for the busiest; on uneven trees some of that overlaps. They must not be too low,
  // and not so high that the choice suffers.
  const auto [algorithm, op, build, refuses] = GetParam();
  if (algorithm == Algorithm::kHierarchical) return;
  for (int ranks = 3; ranks <= 17; ++ranks) {
    for (const std::size_t share : {1, 20000}) {
      const auto shapes = uncut_shapes(op, ranks, share);
      if (!refuses(shapes.front()).empty()) continue;
      const double bytes =
          op == Collective::kBarrier ? 0.0 : static_cast<double>(share * replay_at(ranks) * kElementBytes);
      const double seconds = replay(build_all(GetParam(), shapes), kElementBytes, kLink);
      const double predicted = cost::predict(op, algorithm, ranks, bytes, kLink);
      EXPECT_LT(seconds / predicted, 1.01) << ranks << " ranks, " << bytes << " bytes";
      EXPECT_GT(seconds / predicted, 0.7) << ranks << " ranks, " << bytes << " bytes";
    }
  }
}

std::string replay_test_name(const testing::TestParamInfo<AlgorithmEntry>& info) {
  return fmt::format("{}_{}", cost::name(info.param.algorithm), cost::name(info.param.op));
}
INSTANTIATE_TEST_SUITE_P(Table, Replayed, testing::ValuesIn(algorithm_table().begin(), algorithm_table().end()),
                         replay_test_name);

TEST(Replay, OfSegmentsHidesTheArithmeticBehindTheTransfers) {
  auto shapes = plain_shapes(Collective::kAllReduce, 4, 1 << 20);
  const AlgorithmEntry& ring = *find_algorithm(Collective::kAllReduce, Algorithm::kRing);
  const cost::LinkCost slow_sums{.alpha = 1e-7, .beta = 1e-9, .gamma = 0.9e-9};
  const auto seconds = [&](std::size_t segment_bytes) {
    for (Shape& shape : shapes) shape.segment_bytes = segment_bytes;
    return replay(build_all(ring, shapes), kElementBytes, slow_sums);
  };
  const double bytes = 4.0 * (1 << 20), rest = 0.75 * bytes;
  EXPECT_NEAR(seconds(std::size_t{1} << 40), rest * (2 * slow_sums.beta + slow_sums.gamma), 1e-5);
  EXPECT_LT(seconds(64 << 10), 1.1 * rest * 2 * slow_sums.beta);
}

}  // namespace
}  // namespace trireme::comm
