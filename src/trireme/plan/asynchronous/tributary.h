// plan/asynchronous/tributary.h -- serving within a goal on machines that may be taken away (Tributary; Harlap,
// dissertation, chapter 5).
//
// Allocations in different markets are lost independently of each other. What is held must suffice for the demand with
// the goal's probability; at the end of an hour that is paid for, allocations are released whose absence still leaves
// that. Of those the ones that are least likely to be taken go first: a machine that is taken is free.
// Depends on: spot_market.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/plan/asynchronous/spot_market.h"

namespace trireme::plan {

struct ServingAllocation {
  int market = 0;
  double capacity = 1;  ///< requests a second
  double evicted = 0;   ///< probability within the next hour
  double price = 1;     ///< dollars an hour
};

/// The probability that what is left of them after evictions suffices.
double probability_of(const std::vector<ServingAllocation>& held, double demand);
/// Those that may go while the goal is kept, in the order in which they go: indices, ascending probability of eviction.
std::vector<std::size_t> releases(const std::vector<ServingAllocation>& held, double demand, double goal);

struct ServingGoal {
  double probability = 0.99;  ///< that capacity suffices
  double days = 7;
  double peak_demand = 100, trough_demand = 30;  ///< requests a second, over a day
  double machine_capacity = 5;
  int allocation = 2;  ///< machines that are bought together
};
struct ServingRun {
  double dollars = 0, on_demand_dollars = 0;
  double served = 0;  ///< share of the minutes in which capacity sufficed
  int evictions = 0, released = 0;
};
/// Markets' traces from their first price on; the first quarter is the past that is known.
ServingRun run_tributary(const std::vector<PriceTrace>& markets, const ServingGoal& goal);

}  // namespace trireme::plan
