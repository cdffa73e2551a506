// Unequal devices as virtual workers: policies, and cuts against every cut there is.
#include "trireme/plan/asynchronous/virtual_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "trireme/base/error.h"

namespace trireme::plan {
namespace {

/// The paper's cluster in small: kinds of devices of different speed and memory, so many of each.
std::vector<UnequalDevice> cluster(int each) {
  std::vector<UnequalDevice> devices;
  for (const auto& [kind, speed, memory] :
       {std::tuple{"V", 4.0, 12.0}, {"R", 3.0, 24.0}, {"G", 2.0, 6.0}, {"Q", 1.0, 8.0}}) {
    for (int i = 0; i < each; ++i) devices.push_back({kind, speed, memory});
  }
  return devices;
}

TEST(VirtualWorkers, PoliciesAreThePapers) {
  const auto devices = cluster(4);
  const auto kinds_of = [&](const std::vector<int>& worker) {
    std::multiset<std::string> kinds;
    for (const int device : worker) kinds.insert(devices[static_cast<std::size_t>(device)].kind);
    return kinds;
  };
  for (const auto& worker : allocate(AllocationPolicy::kNodePartition, devices, 4)) {
    const auto kinds = kinds_of(worker);
    EXPECT_EQ(kinds.count(*kinds.begin()), 4U);
  }
  for (const auto& worker : allocate(AllocationPolicy::kEqualDistribution, devices, 4))
    EXPECT_EQ(kinds_of(worker), (std::multiset<std::string>{"V", "R", "G", "Q"}));
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const auto& worker : allocate(AllocationPolicy::kHybrid, devices, 4)) {
    double speed = 0;
    for (const int device : worker) speed += devices[static_cast<std::size_t>(device)].speed;
    least = std::min(least, speed), most = std::max(most, speed);
  }
  EXPECT_LE(most, 1.3 * least) << "virtual workers are about equally fast";
  EXPECT_THROW(allocate(AllocationPolicy::kNodePartition, devices, 3), ConfigError);
}

TEST(VirtualWorkers, CutsAreTheBestOfAllCuts) {
  const std::vector<UnequalDevice> worker{{"V", 4, 0}, {"Q", 1, 0}, {"G", 2, 0}};
  std::vector<UnequalLayer> layers;
  for (int i = 0; i < 9; ++i) layers.push_back({.cost = 1.0 + i % 3, .weight_bytes = 1, .output_bytes = 0.1 * i});
  const auto cut = cut_for(worker, layers, 1.0, 1);
  ASSERT_TRUE(cut);
  std::vector<int> order{0, 1, 2};
  double best = std::numeric_limits<double>::infinity();
  do {
    for (int first = 1; first < 8; ++first) {
      for (int second = first + 1; second < 9; ++second) {
        const int borders[] = {0, first, second, 9};
        double slowest = 0;
        for (int stage = 0; stage < 3; ++stage) {
          double cost = 0;
          for (int layer = borders[stage]; layer < borders[stage + 1]; ++layer)
            cost += layers[static_cast<std::size_t>(layer)].cost;
          const double received = stage > 0 ? layers[static_cast<std::size_t>(borders[stage] - 1)].output_bytes : 0;
          slowest =
              std::max(slowest, cost / worker[static_cast<std::size_t>(order[static_cast<std::size_t>(stage)])].speed +
                                    received);
        }
        best = std::min(best, slowest);
      }
    }
  } while (std::ranges::next_permutation(order).found);
  EXPECT_NEAR(cut->slowest, best, 1e-12);
}

TEST(VirtualWorkers, ACutIsTheSplitOfARecipe) {
  const std::vector<UnequalLayer> layers(7,
                                         {.cost = 1, .weight_bytes = 1, .output_bytes = 0});  // six blocks and a head
  const auto fast_first = cut_for({{"V", 6, 0}, {"Q", 1, 0}}, layers, 1e3, 1);
  ASSERT_TRUE(fast_first);
  EXPECT_EQ(to_split({.order = {0, 1}, .begins = {0, 6}}, 6), "norm");
  EXPECT_EQ(to_split({.order = {0, 1, 2}, .begins = {0, 2, 5}}, 6), "layers.2,layers.5");
  EXPECT_EQ(to_split(*fast_first, 6), fast_first->order.front() == 0 ? "norm" : "layers.1");
}

TEST(VirtualWorkers, MemoryLimitsWhatIsInFlight) {
  const std::vector<UnequalDevice> worker{{"V", 4, 12}, {"Q", 1, 8}};
  const std::vector<UnequalLayer> layers(6, {.cost = 1, .weight_bytes = 1, .output_bytes = 0.2});
  const int most = most_in_flight(worker, layers, 1e3, 8);
  EXPECT_GT(most, 0);
  EXPECT_LT(most, 8);
  EXPECT_FALSE(cut_for(worker, layers, 1e3, most + 1));
  EXPECT_EQ(most_in_flight({{"tiny", 1, 1}}, layers, 1e3, 4), 0);
}

}  // namespace
}  // namespace trireme::plan
