#include "trireme/schedule/replicated.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/versions.h"

namespace trireme::schedule {

namespace {

std::vector<int> counts_of(const StageRanks& stages) {
  std::vector<int> counts;
  for (const auto& ranks : stages) counts.push_back(static_cast<int>(ranks.size()));
  return counts;
}

/// How many ranks there are. Throws where a stage has none, or a rank does not belong to exactly one stage.
int require_ranks(const StageRanks& stages) {
  std::vector<int> all;
  for (const auto& ranks : stages) {
    if (ranks.empty()) throw ConfigError("a stage cannot run on 0 ranks");
    all.insert(all.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == static_cast<int>(i)) continue;
    throw ConfigError(fmt::format("stages are on ranks {}: each from 0 on belongs to one stage", fmt::join(all, ", ")));
  }
  return static_cast<int>(all.size());
}

/// 1F1B of one rank: its micros, so many forwards ahead of its backwards.
std::vector<Instruction> one_rank(int stage, const std::vector<int>& mine, int ahead) {
  const int count = static_cast<int>(mine.size());
  std::vector<Instruction> list;
  for (int i = 0; i < count + ahead; ++i) {
    if (i < count) list.push_back(make(Op::kForward, stage, mine[static_cast<std::size_t>(i)]));
    if (i >= ahead && i - ahead < count)
      list.push_back(make(Op::kBackward, stage, mine[static_cast<std::size_t>(i - ahead)]));
  }
  return list;
}

}  // namespace

StageRanks stage_ranks(std::span<const int> counts) {
  StageRanks stages;
  int next = 0;
  for (const int count : counts) {
    if (count < 1) throw ConfigError(fmt::format("a stage cannot run on {} ranks", count));
    auto& ranks = stages.emplace_back(static_cast<std::size_t>(count));
    std::iota(ranks.begin(), ranks.end(), next);
    next += count;
  }
  return stages;
}

Schedule replicated_1f1b(const StageRanks& stages, int micros) {
  const int all = require_ranks(stages);
  int most = 0, turns = 1;
  for (const auto& ranks : stages) {
    const int count = static_cast<int>(ranks.size());
    most = std::max(most, count);
    if (turns <= micros) turns = std::lcm(turns, count);
  }
  if (most == 0 || micros < most) {
    throw ConfigError(
        fmt::format("{} micros are too few for stages on {} ranks", micros, fmt::join(counts_of(stages), ", ")),
        fmt::format("take {} micros a step, so that every rank has one", std::max(most, 1)));
  }
  Schedule schedule;
  schedule.name = fmt::format("1f1b on {} ranks a stage", fmt::join(counts_of(stages), "+"));
  schedule.micros = micros;
  schedule.routes.resize(static_cast<std::size_t>(std::min(turns, micros)));
  for (int micro = 0; micro < micros; ++micro) {
    schedule.route_of.push_back(micro % static_cast<int>(schedule.routes.size()));
  }
  schedule.ranks.resize(static_cast<std::size_t>(all));
  int behind = all;  // ranks of this and later stages
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const auto& ranks = stages[stage];
    const int count = static_cast<int>(ranks.size());
    for (std::size_t route = 0; route < schedule.routes.size(); ++route) {
      schedule.routes[route].push_back(ranks[route % ranks.size()]);
    }
    behind -= count;
    // Once the pipeline is full, each rank of the later stages has one micro of this one. Ranks of a later stage that
    // take turns finish out of step with this one, so one more keeps them from waiting for it.
    const auto later = std::span(stages).subspan(stage + 1);
    const bool in_turns = std::ranges::any_of(later, [](const auto& other) { return other.size() > 1; });
    const int ahead = (behind + count - 1) / count + (in_turns ? 1 : 0);
    for (int turn = 0; turn < count; ++turn) {
      std::vector<int> mine;
      for (int micro = 0; micro < micros; ++micro) {
        if (schedule.route_of[static_cast<std::size_t>(micro)] % count == turn) mine.push_back(micro);
      }
      const int rank = ranks[static_cast<std::size_t>(turn)];
      schedule.ranks[static_cast<std::size_t>(rank)] = one_rank(static_cast<int>(stage), mine, ahead);
    }
  }
  return schedule;
}

Schedule replicated_pipedream(const StageRanks& stages, int micros, int steps, bool recompute) {
  replicated_1f1b(stages, micros);  // each step alone has a micro for every rank
  Schedule schedule = replicated_1f1b(stages, micros * steps);
  schedule.name = fmt::format("pipedream on {} ranks a stage", fmt::join(counts_of(stages), "+"));
  schedule.update_every = micros;
  schedule.weights = WeightChoice::kStash;
  schedule = add_updates(recompute ? add_recompute(schedule) : schedule);
  VersionUses wanted = present_versions(schedule);
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk) {
    for (int micro = 0; micro < schedule.micros; ++micro) wanted.backward(chunk, micro) = wanted.forward(chunk, micro);
  }
  return add_stashes(schedule, wanted);
}

}  // namespace trireme::schedule
