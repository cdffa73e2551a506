// bench/scheduler.cpp -- how long the scheduler of trials takes for one decision, beside the 5 ms that a sweep may lose
// by it: 1,000 trials on 1,000 slots, on small and large nodes, with an empty, a half full and a full cluster.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <limits>

#include "bench/arguments.h"
#include "trireme/base/random.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/experiment/scheduler.h"

namespace {

using namespace trireme;
using namespace trireme::experiment;

constexpr int kTrials = 1000, kSlots = 1000, kExperiments = 10;

SchedulerState cluster(int node_slots, double full, bool gangs) {
  SchedulerState state{.nodes = std::vector<int>(static_cast<std::size_t>(kSlots / node_slots), node_slots),
                       .weights = std::vector<double>(kExperiments, 1.0),
                       .tasks = {}};
  const Random random(1, "bench");
  std::vector<int> free = state.nodes;
  int used = 0;
  for (int id = 0; id < kTrials; ++id) {
    const auto index = static_cast<std::uint64_t>(8 * id);
    Task task{
        .id = id,
        .experiment = static_cast<int>(random.below(kExperiments, index)),
        .slots = gangs ? 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(node_slots), index + 1)) : 1,
        .priority = static_cast<int>(random.below(3, index + 2)),
        .submitted = id,
        .seconds = 1.0 + static_cast<double>(random.below(1000, index + 3))};
    if (used < full * kSlots) {
      task.grants = place_gang(task.slots, free, state.nodes);
      for (const Grant& grant : task.grants) {
        free[static_cast<std::size_t>(grant.node)] -= grant.slots;
        used += grant.slots;
      }
    }
    state.tasks.push_back(std::move(task));
  }
  return state;
}

}  // namespace

int main(int count, char** words) {
  trireme::bench::Arguments app("A decision of the scheduler of trials beside 5 ms");
  if (const auto status = app.parse(count, words)) return *status;
  constexpr double kLimit = 5e-3;
  constexpr auto kRight = TextTable::Align::kRight;
  TextTable table({{"nodes"},
                   {"cluster"},
                   {"trials"},
                   {"started", kRight},
                   {"preempted", kRight},
                   {"decision", kRight},
                   {"limit", kRight},
                   {"decision/limit", kRight}});
  for (const int node_slots : {1, 8, 1000}) {
    for (const double full : {0.0, 0.5, 1.0}) {
      for (const bool gangs : {false, true}) {
        if (gangs && node_slots == 1) continue;
        const SchedulerState state = cluster(node_slots, full, gangs);
        Decision decision;
        double least = std::numeric_limits<double>::infinity();
        for (int round = 0; round < 5; ++round) {
          const auto start = std::chrono::steady_clock::now();
          decision = decide(state);
          least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
        table.add({fmt::format("{} x {}", state.nodes.size(), node_slots), fmt::format("{:.0f} % full", 100 * full),
                   gangs ? "gangs" : "one slot", fmt::format("{}", decision.start.size()),
                   fmt::format("{}", decision.preempt.size()), short_seconds(least), short_seconds(kLimit),
                   fmt::format("{:.3f}", least / kLimit)});
      }
    }
  }
  std::fputs(table.text().c_str(), stdout);
  return 0;
}
