#include "trireme/plan/asynchronous/tributary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::plan {
namespace {

constexpr double kServingHour = 3600, kMinute = 60, kDay = 24 * kServingHour;

double demand_at(const ServingGoal& goal, double time) {
  const double wave = 0.5 - 0.5 * std::cos(2 * M_PI * time / kDay);
  return goal.trough_demand + (goal.peak_demand - goal.trough_demand) * wave;
}

}  // namespace

double probability_of(const std::vector<ServingAllocation>& held, double demand) {
  // How likely which sums of capacity are: allocations go independently, and few sums differ.
  std::map<double, double> sums{{0.0, 1.0}};
  for (const ServingAllocation& one : held) {
    std::map<double, double> next;
    for (const auto& [sum, probability] : sums) {
      next[sum] += probability * one.evicted;
      next[sum + one.capacity] += probability * (1 - one.evicted);
    }
    sums = std::move(next);
  }
  double enough = 0;
  for (const auto& [sum, probability] : sums) enough += sum + 1e-9 >= demand ? probability : 0;
  return enough;
}

std::vector<std::size_t> releases(const std::vector<ServingAllocation>& held, double demand, double goal) {
  std::vector<std::size_t> order(held.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return held[i].evicted; });
  std::vector<bool> gone(held.size(), false);
  std::vector<std::size_t> released;
  for (const std::size_t candidate : order) {
    std::vector<ServingAllocation> rest;
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (!gone[i] && i != candidate) rest.push_back(held[i]);
    }
    if (probability_of(rest, demand) < goal) continue;
    gone[candidate] = true;
    released.push_back(candidate);
  }
  return released;
}

ServingRun run_tributary(const std::vector<PriceTrace>& markets, const ServingGoal& goal) {
  if (markets.empty()) throw ConfigError("no market to buy machines in", "give at least one price trace");
  const double begin = markets.front().seconds() / 4;
  const double above = 0.2 * markets.front().on_demand;  // what each bid is above its price
  std::vector<BidHistory::Outlook> outlooks;
  for (const PriceTrace& trace : markets) outlooks.push_back(BidHistory(trace, begin).of(above));
  struct Held {
    ServingAllocation offer;
    double hour_begin = 0, ends = 0;
  };
  std::vector<Held> held;
  ServingRun run;
  const auto offers = [&] {
    std::vector<ServingAllocation> all;
    for (const Held& one : held) all.push_back(one.offer);
    return all;
  };
  double minutes = 0, enough = 0;
  for (double time = begin; time < begin + goal.days * kDay; time += kMinute) {
    std::erase_if(held, [&](const Held& one) {
      run.evictions += one.ends <= time;
      return one.ends <= time;  // its hour is free
    });
    // What the hour to come may ask for.
    const double ahead = std::max(demand_at(goal, time - begin), demand_at(goal, time - begin + kServingHour));
    const auto may_go = releases(offers(), ahead, goal.probability);
    std::vector<bool> gone(held.size(), false);
    for (const std::size_t i : may_go) gone[i] = held[i].hour_begin + kServingHour <= time + kMinute;
    for (std::size_t i = held.size(); i-- > 0;) {
      Held& one = held[i];
      if (one.hour_begin + kServingHour > time + kMinute) continue;
      run.dollars += goal.allocation * one.offer.price;
      one.hour_begin += kServingHour;
      one.offer.price = markets[static_cast<std::size_t>(one.offer.market)].at(time);
      if (!gone[i]) continue;
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
      ++run.released;
    }
    // The cheapest market that is held least: what is taken there takes little with it.
    for (int tries = 0; tries < 200 && probability_of(offers(), ahead) < goal.probability; ++tries) {
      std::size_t best = 0;
      double least = 0;
      for (std::size_t market = 0; market < markets.size(); ++market) {
        const auto there =
            std::ranges::count_if(held, [&](const Held& one) { return one.offer.market == static_cast<int>(market); });
        const double cost = markets[market].at(time) * (1 + 0.2 * static_cast<double>(there));
        if (market == 0 || cost < least) best = market, least = cost;
      }
      const double price = markets[best].at(time);
      held.push_back({.offer = {.market = static_cast<int>(best),
                                .capacity = goal.allocation * goal.machine_capacity,
                                .evicted = outlooks[best].evicted,
                                .price = price},
                      .hour_begin = time,
                      .ends = markets[best].exceeds(price + above, time)});
    }
    double capacity = 0;
    for (const Held& one : held) capacity += one.offer.capacity;
    ++minutes;
    enough += capacity + 1e-9 >= demand_at(goal, time - begin);
    run.on_demand_dollars +=
        std::ceil(demand_at(goal, time - begin) / goal.machine_capacity) * markets.front().on_demand / 60;
  }
  for (const Held& one : held) run.dollars += goal.allocation * one.offer.price;
  run.served = enough / minutes;
  return run;
}

}  // namespace trireme::plan
