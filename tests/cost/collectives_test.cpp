#include "trireme/cost/collectives.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <string>

namespace trireme::cost {
namespace {

// The constants of the published worked example: 5 us, 25 GB/s, 200 GB/s combined.
constexpr LinkCost kLink{.alpha = 5e-6, .beta = 1 / 25e9, .gamma = 1 / 200e9};

TEST(Names, AreReadBackAndDiffer) {
  std::set<std::string_view> seen;
  for (const Collective op : all_collectives()) {
    EXPECT_EQ(parse_collective(name(op)), op);
    EXPECT_TRUE(seen.insert(name(op)).second) << name(op);
  }
  for (const Algorithm algorithm : all_algorithms()) {
    EXPECT_EQ(parse_algorithm(name(algorithm)), algorithm);
    EXPECT_TRUE(seen.insert(name(algorithm)).second) << name(algorithm);
  }
  EXPECT_EQ(parse_collective("allreduce"), std::nullopt);
  EXPECT_EQ(parse_algorithm(""), std::nullopt);
}

TEST(Predict, ReproducesTheWorkedTableOfAllReduceTimes) {
  struct Row {
    int ranks;
    double bytes, ring, doubling, halving;  // microseconds, to a tenth
  };
  constexpr Row kRows[] = {
      {8, 1024, 70.1, 15.1, 30.1},
      {8, 65536, 74.9, 23.8, 34.9},
      {8, 1048576, 148.0, 156.6, 108.0},
      {8, 67108864, 5061.2, 9074.7, 5021.2},
      {8, 1073741824, 79929.5, 144970.1, 79889.5},
      {64, 1024, 630.1, 30.3, 60.1},
      {64, 65536, 635.5, 47.7, 65.5},
      {64, 1048576, 717.7, 313.1, 147.7},
      {64, 67108864, 6245.1, 18149.4, 5675.1},
      {64, 1073741824, 90472.0, 289940.3, 89902.0},
      {512, 1024, 5110.1, 45.4, 90.1},
      {512, 65536, 5115.6, 71.5, 95.6},
      {512, 1048576, 5199.0, 469.7, 179.0},
      {512, 67108864, 10803.1, 27224.1, 5783.1},
      {512, 1073741824, 96199.8, 434910.4, 91179.8},
  };
  const auto microseconds = [](Algorithm algorithm, const Row& row) {
    return 1e6 * predict(Collective::kAllReduce, algorithm, row.ranks, row.bytes, kLink);
  };
  for (const Row& row : kRows) {
    EXPECT_NEAR(microseconds(Algorithm::kRing, row), row.ring, 0.05 + 1e-9 * row.ring);
    EXPECT_NEAR(microseconds(Algorithm::kRecursiveDoubling, row), row.doubling, 0.05 + 1e-9 * row.doubling);
    EXPECT_NEAR(microseconds(Algorithm::kHalvingDoubling, row), row.halving, 0.05 + 1e-9 * row.halving);
  }
}

TEST(Predict, GivesThePapersTermsOneByOne) {
  // Only alpha, only beta, only gamma: what each formula counts, for p = 8 and n = 1.
  const auto terms = [](Collective op, Algorithm algorithm) {
    const auto only = [&](LinkCost link) { return predict(op, algorithm, 8, 1, link); };
    return std::array{only({1, 0, 0}), only({0, 1, 0}), only({0, 0, 1})};
  };
  using Terms = std::array<double, 3>;
  EXPECT_EQ(terms(Collective::kAllReduce, Algorithm::kRing), (Terms{14, 1.75, 0.875}));
  EXPECT_EQ(terms(Collective::kAllReduce, Algorithm::kHalvingDoubling), (Terms{6, 1.75, 0.875}));
  EXPECT_EQ(terms(Collective::kAllReduce, Algorithm::kRecursiveDoubling), (Terms{3, 3, 3}));
  EXPECT_EQ(terms(Collective::kAllGather, Algorithm::kBruck), (Terms{3, 0.875, 0}));
  EXPECT_EQ(terms(Collective::kAllGather, Algorithm::kRing), (Terms{7, 0.875, 0}));
  EXPECT_EQ(terms(Collective::kBroadcast, Algorithm::kBinomial), (Terms{3, 3, 0}));
  EXPECT_EQ(terms(Collective::kBroadcast, Algorithm::kScatterAllGather), (Terms{6, 1.75, 0}));
  EXPECT_EQ(terms(Collective::kReduceScatter, Algorithm::kHalvingDoubling), (Terms{3, 0.875, 0.875}));
  EXPECT_EQ(terms(Collective::kReduceScatter, Algorithm::kPairwise), (Terms{7, 0.875, 0.875}));
  EXPECT_EQ(terms(Collective::kAllToAll, Algorithm::kBruck), (Terms{3, 1.5, 0}));
  EXPECT_EQ(terms(Collective::kAllToAll, Algorithm::kPairwise), (Terms{7, 0.875, 0}));
  EXPECT_EQ(terms(Collective::kReduce, Algorithm::kBinomial), (Terms{3, 3, 3}));
  EXPECT_EQ(terms(Collective::kReduce, Algorithm::kHalvingDoubling), (Terms{6, 1.75, 0.875}));
  EXPECT_EQ(terms(Collective::kBarrier, Algorithm::kBruck), (Terms{3, 0, 0}));
}

TEST(Predict, ChargesOtherCountsThanPowersOfTwoForFolding) {
  const auto seconds = [](Algorithm algorithm, int ranks) {
    return predict(Collective::kAllReduce, algorithm, ranks, 1e6, kLink);
  };
  // Nine ranks are eight and one more pair to fold: dearer than eight, and dearer than sixteen.
  for (const Algorithm algorithm : {Algorithm::kRecursiveDoubling, Algorithm::kHalvingDoubling}) {
    EXPECT_GT(seconds(algorithm, 9), seconds(algorithm, 8));
    EXPECT_GT(seconds(algorithm, 9), seconds(algorithm, 16));
  }
  EXPECT_TRUE(std::isinf(predict(Collective::kAllGather, Algorithm::kRecursiveDoubling, 9, 1e6, kLink)));
}

TEST(Predict, IsInfiniteForWhatDoesNotExistAndZeroForOneRank) {
  EXPECT_TRUE(std::isinf(predict(Collective::kBarrier, Algorithm::kRing, 4, 0, kLink)));
  EXPECT_TRUE(std::isinf(predict(Collective::kAllReduce, Algorithm::kAuto, 4, 8, kLink)));
  EXPECT_TRUE(std::isinf(predict(Collective::kAllReduce, Algorithm::kNative, 4, 8, kLink)));
  for (const Collective op : all_collectives()) {
    for (const Algorithm algorithm : all_algorithms()) {
      const double seconds = predict(op, algorithm, 1, 1e6, kLink);
      EXPECT_TRUE(seconds == 0 || std::isinf(seconds)) << name(op) << " " << name(algorithm);
    }
  }
}

TEST(Predict, MakesTwoLevelsPayOffWhenLinksAcrossAreSlow) {
  const LinkCost slow{.alpha = 50e-6, .beta = 1 / 1e9, .gamma = kLink.gamma};
  for (const Topology topology : {Topology{32, 4}, Topology{24, 3}}) {
    const auto seconds = [&](Algorithm algorithm) {
      return predict(Collective::kAllReduce, algorithm, topology, 64e6, {kLink, slow});
    };
    EXPECT_LT(seconds(Algorithm::kHierarchical), seconds(Algorithm::kRing));
    EXPECT_LT(seconds(Algorithm::kHierarchical), seconds(Algorithm::kHalvingDoubling));
  }
}

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kReduceScatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllToAll, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kBroadcast, 16), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kReduce, 16), 1);
}

TEST(WireBytes, AreNoMoreThanAnyFormulaMoves) {
  for (const Collective op : all_collectives()) {
    EXPECT_EQ(wire_bytes(op, 1, 1e6), 0);
    for (const Algorithm algorithm : all_algorithms()) {
      for (const int ranks : {2, 3, 8, 17}) {
        const double bytes = predict(op, algorithm, ranks, 1e6, {.alpha = 0, .beta = 1, .gamma = 0});
        EXPECT_GE(bytes, wire_bytes(op, ranks, 1e6) * (1 - 1e-12))
            << name(op) << " " << name(algorithm) << " " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::cost
