// The order in which ranks give calls to their GPUs is the same on all of them, whatever the timing.
#include "trireme/comm/nccl/launch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace trireme::comm {
namespace {

LaunchId launch(std::uint32_t channel, std::uint64_t number) { return {.channel = channel, .number = number}; }

TEST(LaunchOrder, ACallWaitsForOneThatMayComeBeforeIt) {
  LaunchOrder order;
  const std::uint64_t early = order.propose(launch(1, 0)), late = order.propose(launch(2, 0));
  EXPECT_LT(early, late);
  order.settle(launch(2, 0), late);
  EXPECT_FALSE(order.may_launch(launch(2, 0)));  // the first may still get a smaller stamp
  order.settle(launch(1, 0), late + 5);
  EXPECT_TRUE(order.may_launch(launch(2, 0)));  // and has got a larger one
  EXPECT_FALSE(order.may_launch(launch(1, 0)));
  order.leave(launch(2, 0));
  EXPECT_TRUE(order.may_launch(launch(1, 0)));
  order.leave(launch(1, 0));
  EXPECT_TRUE(order.empty());
  EXPECT_GT(order.propose(launch(3, 0)), late + 5);  // above all that it has seen
}

TEST(LaunchOrder, EqualStampsAreSettledByName) {
  LaunchOrder order;
  order.propose(launch(7, 0));
  order.propose(launch(4, 0));
  order.settle(launch(7, 0), 9);
  order.settle(launch(4, 0), 9);
  EXPECT_TRUE(order.may_launch(launch(4, 0)));
  EXPECT_FALSE(order.may_launch(launch(7, 0)));
}

/// Ranks with calls of random members, their steps interleaved at random: all must be launched, and no two calls in
/// opposite orders on two ranks.
TEST(LaunchOrder, IsTheSameOnAllRanksInEveryInterleaving) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    constexpr std::size_t kMembers = 5, kCalls = 25;
    struct Shared {
      std::vector<std::size_t> members;
      std::vector<std::uint64_t> proposals;  // so far
      std::vector<bool> proposed, settled, launched;
    };
    std::vector<Shared> calls(kCalls);
    for (Shared& c : calls) {
      for (std::size_t r = 0; r < kMembers; ++r) {
        if (below(2) == 0) c.members.push_back(r);
      }
      c.proposed = c.settled = c.launched = std::vector<bool>(kMembers, false);
    }
    std::vector<LaunchOrder> orders(kMembers);
    std::vector<std::vector<std::size_t>> launched(kMembers);
    std::size_t open = 0;
    for (const Shared& c : calls) open += c.members.size();
    for (int steps = 0; open > 0; ++steps) {
      ASSERT_LT(steps, 1'000'000) << "nothing more can be launched";
      const std::size_t i = below(kCalls);
      Shared& c = calls[i];
      if (c.members.empty()) continue;
      const std::size_t r = c.members[below(c.members.size())];
      const LaunchId id = launch(static_cast<std::uint32_t>(i % 3), i);
      if (!c.proposed[r]) {
        c.proposals.push_back(orders[r].propose(id));
        c.proposed[r] = true;
      } else if (!c.settled[r] && c.proposals.size() == c.members.size()) {
        orders[r].settle(id, *std::ranges::max_element(c.proposals));
        c.settled[r] = true;
      } else if (c.settled[r] && !c.launched[r] && orders[r].may_launch(id)) {
        orders[r].leave(id);
        launched[r].push_back(i);
        c.launched[r] = true;
        --open;
      }
    }
    for (std::size_t a = 0; a < kMembers; ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        std::vector<std::size_t> of_a, of_b;
        const auto common = [&](std::size_t from, std::size_t other, std::vector<std::size_t>& to) {
          for (const std::size_t i : launched[from]) {
            if (calls[i].launched[other]) to.push_back(i);
          }
        };
        common(a, b, of_a);
        common(b, a, of_b);
        ASSERT_EQ(of_a, of_b) << "seed " << seed << ", ranks " << a << " and " << b;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::comm
