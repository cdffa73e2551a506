// Machines that may be taken away: prices, bids, tiers, and serving within a goal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "trireme/base/error.h"
#include "trireme/plan/asynchronous/bidbrain.h"
#include "trireme/plan/asynchronous/tributary.h"

namespace trireme::plan {
namespace {

TEST(SpotMarket, ATraceIsAFunctionOfItsSeedAndIsReadFromCsv) {
  EXPECT_EQ(make_price_trace(3, 1, 4).prices, make_price_trace(3, 1, 4).prices);
  EXPECT_NE(make_price_trace(3, 1, 4).prices, make_price_trace(3, 1, 5).prices);
  const PriceTrace trace = read_price_trace("seconds,price\n0,0.2\n600,0.5\n1200,0.1\n", 1);
  EXPECT_THAT(trace.prices, testing::ElementsAre(0.2, 0.2, 0.5, 0.5, 0.1));
  EXPECT_EQ(trace.at(650), 0.5);
  EXPECT_EQ(trace.exceeds(0.3, 0), 600);
  EXPECT_EQ(trace.exceeds(0.3, 700), 700);
  EXPECT_THROW(read_price_trace("0,0.2\n0,0.3\n", 1), ConfigError);
  EXPECT_THROW(read_price_trace("0,cheap\n", 1), ConfigError);
  EXPECT_THROW(read_price_trace("", 1), ConfigError);
}

TEST(SpotMarket, HigherBidsAreTakenAwayLessOften) {
  const PriceTrace trace = make_price_trace(20, 1, 1);
  const BidHistory history(trace, trace.seconds());
  double before = 1;
  for (const double above : {0.0001, 0.01, 0.1, 0.8}) {
    const auto outlook = history.of(above);
    EXPECT_LE(outlook.evicted, before);
    EXPECT_LE(outlook.useful_seconds, 3600);
    before = outlook.evicted;
  }
  EXPECT_LT(before, 0.2);
}

TEST(Tiers, AreThePapersStages) {
  EXPECT_EQ(tier_stage(4, 4), TierStage::kReliableServers);
  EXPECT_EQ(tier_stage(4, 5), TierStage::kActiveServers);
  EXPECT_EQ(tier_stage(4, 59), TierStage::kActiveServers);
  EXPECT_EQ(tier_stage(4, 60), TierStage::kNoReliableWorkers);
  for (const int spot : {0, 2, 8, 40}) {
    const TierPlacement placed = place_tiers(2, spot, 6, 80);
    for (const int backup : placed.backups) EXPECT_LT(backup, 2) << "state stays where machines stay";
    const bool on_spot = placed.stage != TierStage::kReliableServers;
    for (const int server : placed.servers) EXPECT_EQ(server >= 2, on_spot) << spot;
    const std::set<int> workers(placed.partitions.begin(), placed.partitions.end());
    EXPECT_EQ(workers.contains(0), placed.stage != TierStage::kNoReliableWorkers) << spot;
    EXPECT_EQ(placed.partitions.size(), 80U);
  }
  EXPECT_THROW(place_tiers(0, 8, 1, 1), ConfigError);
}

TEST(BidBrain, CostsLessThanOnDemandAndThanStandardBidding) {
  double brain = 0, standard = 0, demand = 0;
  for (const std::uint64_t seed : {1, 2, 3}) {
    const PriceTrace trace = make_price_trace(20, 1, seed);
    const SpotJob job{.begin_seconds = trace.seconds() / 2};
    const SpotRun mine = run_bidbrain(trace, job);
    brain += mine.dollars;
    standard += run_standard_bidding(trace, job).dollars;
    demand += run_on_demand(trace, job).dollars;
    EXPECT_GE(mine.machine_hours * job.efficiency, job.machine_hours * 0.99) << "the whole job is done";
    EXPECT_EQ(mine.clocks_lost, 0);
  }
  EXPECT_LT(brain, 0.5 * demand);
  EXPECT_LT(brain, 1.05 * standard);
}

TEST(BidBrain, AnHourInWhichMachinesAreTakenIsFree) {
  PriceTrace trace{.on_demand = 1, .step_seconds = 300};
  for (int i = 0; i < 600; ++i) trace.prices.push_back(i >= 106 && i % 13 == 2 ? 5.0 : 0.1);
  const SpotRun run =
      run_standard_bidding(trace, {.machine_hours = 100, .reliable = 1, .most_spot = 31, .begin_seconds = 100 * 300});
  EXPECT_GT(run.evictions, 0);
  EXPECT_GT(run.free_machine_hours, 0);
  EXPECT_LT(run.dollars, 100 * 1.0);
}

TEST(Tributary, ReleasesWhatTheGoalDoesNotNeedAndTheLeastLikelyToGoFirst) {
  std::vector<ServingAllocation> held(5, {.capacity = 10, .evicted = 0.2, .price = 1});
  held[3].evicted = 0.01;
  EXPECT_NEAR(probability_of({held[0], held[1]}, 10), 1 - 0.2 * 0.2, 1e-12);
  EXPECT_NEAR(probability_of({held[0], held[1]}, 20), 0.8 * 0.8, 1e-12);
  const auto gone = releases(held, 10, 0.99);
  ASSERT_FALSE(gone.empty());
  EXPECT_EQ(gone.front(), 3U) << "a machine that is taken away is free, one that stays is not";
  EXPECT_TRUE(releases(held, 50, 0.99).empty()) << "all are needed";
  std::vector<ServingAllocation> rest;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (std::ranges::find(gone, i) == gone.end()) rest.push_back(held[i]);
  }
  EXPECT_GE(probability_of(rest, 10), 0.99);
}

TEST(Tributary, ServesWithinItsGoalForLessThanOnDemand) {
  std::vector<PriceTrace> markets;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) markets.push_back(make_price_trace(8, 1, 100 + seed));
  const ServingRun run = run_tributary(markets, {.probability = 0.95, .days = 1});
  EXPECT_GE(run.served, 0.95);
  EXPECT_LT(run.dollars, 0.8 * run.on_demand_dollars);
  EXPECT_GT(run.released, 0);
}

}  // namespace
}  // namespace trireme::plan
