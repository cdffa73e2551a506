#include "trireme/plan/asynchronous/bidbrain.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "trireme/base/error.h"

namespace trireme::plan {
namespace {

constexpr double kSecondsOfHour = 3600, kDecideEvery = 120;

/// Machines that were bought together.
struct Allocation {
  int machines = 0;
  double bid = 0, hour_begin = 0, hour_price = 0, ends = 0;
};

/// How many to buy now, and at which bid; nothing: none.
using Decide = std::function<std::optional<double>(double time, const std::vector<Allocation>& held)>;

SpotRun run_spot(const PriceTrace& trace, const SpotJob& job, const Decide& decide) {
  SpotRun run{.stages = {0, 0, 0}};
  std::vector<Allocation> held;
  double time = job.begin_seconds, work = 0, stopped_until = time;
  const double end_of_trace = trace.seconds() + 365 * 24 * kSecondsOfHour;
  TierStage stage = tier_stage(job.reliable, 0);
  ++run.stages[static_cast<std::size_t>(stage) - 1];
  const auto machines = [&] {
    int all = job.reliable;
    for (const Allocation& one : held) all += one.machines;
    return all;
  };
  const auto settle_stage = [&] {
    const TierStage now = tier_stage(job.reliable, machines() - job.reliable);
    if (now != stage) ++run.stages[static_cast<std::size_t>(now) - 1];
    stage = now;
  };
  bool done = false;
  while (!done) {
    TRIREME_CHECK(time < end_of_trace, "the job does not end");
    if (machines() - job.reliable + job.allocation <= job.most_spot) {
      if (const auto bid = decide(time, held); bid && trace.at(time) <= *bid) {
        held.push_back({.machines = job.allocation,
                        .bid = *bid,
                        .hour_begin = time,
                        .hour_price = trace.at(time),
                        .ends = trace.exceeds(*bid, time)});
        stopped_until = std::max(stopped_until, time + job.addition_overhead_seconds);
        settle_stage();
        continue;  // perhaps another
      }
    }
    // Until the next decision, the end of an hour, or somebody is taken.
    double next = time + kDecideEvery;
    for (const Allocation& one : held) next = std::min({next, one.ends, one.hour_begin + kSecondsOfHour});
    next = std::max(next, time + 1e-6);
    const double useful = std::max(0.0, next - std::max(time, std::min(next, stopped_until)));
    // Reliable machines compute nothing in stage 3.
    const int workers = machines() - (stage == TierStage::kNoReliableWorkers ? job.reliable : 0);
    const double rate = workers * (workers > 1 ? job.efficiency : 1) / kSecondsOfHour;
    done = rate > 0 && work + useful * rate >= job.machine_hours;
    if (done) next -= useful - (job.machine_hours - work) / rate;
    work += std::max(0.0, next - std::max(time, std::min(next, stopped_until))) * rate;
    run.machine_hours += machines() * (next - time) / kSecondsOfHour;
    run.dollars += job.reliable * trace.on_demand * (next - time) / kSecondsOfHour;
    time = next;
    bool evicted = false;
    for (std::size_t i = 0; i < held.size();) {
      Allocation& one = held[i];
      if (one.ends <= time) {  // this hour is free
        run.free_machine_hours += one.machines * (time - one.hour_begin) / kSecondsOfHour;
        ++run.evictions;
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
        evicted = true;
        continue;
      }
      if (one.hour_begin + kSecondsOfHour <= time) {
        run.dollars += one.machines * one.hour_price;
        one.hour_begin = time;
        one.hour_price = trace.at(time);
      }
      ++i;
    }
    if (evicted) {
      stopped_until = std::max(stopped_until, time + job.eviction_overhead_seconds);
      settle_stage();
    }
  }
  for (const Allocation& one : held) run.dollars += one.machines * one.hour_price;  // begun hours are paid
  run.hours = (time - job.begin_seconds) / kSecondsOfHour;
  return run;
}

}  // namespace

TierStage tier_stage(int reliable, int spot) {
  if (spot <= reliable) return TierStage::kReliableServers;
  return spot < 15 * reliable ? TierStage::kActiveServers : TierStage::kNoReliableWorkers;
}

TierPlacement place_tiers(int reliable, int spot, int shards, int partitions) {
  if (reliable < 1)
    throw ConfigError("no reliable machine: all spot machines can be taken at once, and the state with them",
                      "keep at least one on demand");
  TierPlacement placed{.stage = tier_stage(reliable, spot), .servers = {}, .backups = {}, .partitions = {}};
  // Active servers on half of the spot machines: evictions of the others move no state.
  const int active = std::max(1, spot / 2);
  for (int shard = 0; shard < shards; ++shard) {
    placed.backups.push_back(shard % reliable);
    placed.servers.push_back(placed.stage == TierStage::kReliableServers ? shard % reliable
                                                                         : reliable + shard % active);
  }
  const int first = placed.stage == TierStage::kNoReliableWorkers ? reliable : 0;
  const int workers = reliable + spot - first;
  for (int part = 0; part < partitions; ++part) placed.partitions.push_back(first + part % workers);
  return placed;
}

SpotRun run_on_demand(const PriceTrace& trace, const SpotJob& job) {
  const int machines = job.reliable + job.most_spot;
  SpotRun run{.stages = {1, 0, 0}};
  run.hours = job.machine_hours / (machines * job.efficiency);
  run.machine_hours = run.hours * machines;
  run.dollars = run.machine_hours * trace.on_demand;
  return run;
}

SpotRun run_standard_bidding(const PriceTrace& trace, const SpotJob& job) {
  return run_spot(trace, job, [&](double, const std::vector<Allocation>&) { return std::optional(trace.on_demand); });
}

SpotRun run_bidbrain(const PriceTrace& trace, const SpotJob& job) {
  const BidHistory history(trace, job.begin_seconds);
  constexpr double kAbove[] = {0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8};  // of the on-demand price
  std::vector<std::pair<double, BidHistory::Outlook>> offers;
  for (const double share : kAbove) offers.emplace_back(share * trace.on_demand, history.of(share * trace.on_demand));
  // What the offer below a margin promises: the past is looked at once, not for every decision.
  const auto outlook_of = [&](double above) {
    const auto worse = std::ranges::find_if(offers, [&](const auto& offer) { return offer.first > above; });
    return worse == offers.begin() ? offers.front().second : std::prev(worse)->second;
  };
  // Expected dollars and machine-hours of work in the next hour, of what is held and one more allocation at a bid.
  const auto cost_per_work = [&](double time, const std::vector<Allocation>& held,
                                 const std::pair<double, BidHistory::Outlook>* more) {
    double dollars = job.reliable * trace.on_demand, work = job.reliable * kSecondsOfHour, evicted = 0;
    const auto add = [&](int machines, double price, const BidHistory::Outlook& outlook) {
      dollars += (1 - outlook.evicted) * machines * price;
      work += machines * outlook.useful_seconds;
      evicted += outlook.evicted;
    };
    const int count = static_cast<int>(held.size()) + (more != nullptr ? 1 : 0);
    for (const Allocation& one : held) add(one.machines, one.hour_price, outlook_of(one.bid - trace.at(time)));
    if (more != nullptr) add(job.allocation, trace.at(time), more->second);
    const int machines = job.reliable + job.allocation * count;
    work -= evicted * job.eviction_overhead_seconds * machines;
    if (more != nullptr) work -= job.addition_overhead_seconds * machines;
    return work > 0 ? dollars / (job.efficiency * work) : std::numeric_limits<double>::infinity();
  };
  return run_spot(trace, job, [&](double time, const std::vector<Allocation>& held) -> std::optional<double> {
    // Dearer than on demand is never worth it.
    if (trace.at(time) > trace.on_demand) return std::nullopt;
    double least = cost_per_work(time, held, nullptr);
    std::optional<double> bid;
    for (const auto& offer : offers) {
      const double cost = cost_per_work(time, held, &offer);
      if (cost >= least) continue;
      least = cost;
      bid = trace.at(time) + offer.first;
    }
    return bid;
  });
}

}  // namespace trireme::plan
