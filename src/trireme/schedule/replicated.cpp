#include "trireme/schedule/replicated.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::schedule {

Schedule replicated_1f1b(std::span<const int> ranks_of_stage, int micros) {
  int most = 0, turns = 1;
  for (const int ranks : ranks_of_stage) {
    if (ranks < 1) throw ConfigError(fmt::format("a stage cannot run on {} ranks", ranks));
    most = std::max(most, ranks);
    if (turns <= micros) turns = std::lcm(turns, ranks);
  }
  if (most == 0 || micros < most) {
    throw ConfigError(
        fmt::format("{} micros are too few for stages on {} ranks", micros, fmt::join(ranks_of_stage, ", ")),
        fmt::format("take {} micros a step, so that every rank has one", std::max(most, 1)));
  }
  Schedule schedule;
  schedule.name = fmt::format("1f1b on {} ranks a stage", fmt::join(ranks_of_stage, "+"));
  schedule.micros = micros;
  schedule.routes.resize(static_cast<std::size_t>(std::min(turns, micros)));
  for (int micro = 0; micro < micros; ++micro) {
    schedule.route_of.push_back(micro % static_cast<int>(schedule.routes.size()));
  }
  int behind = std::accumulate(ranks_of_stage.begin(), ranks_of_stage.end(), 0);  // ranks of this and later stages
  schedule.ranks.reserve(static_cast<std::size_t>(behind));
  for (int stage = 0; stage < static_cast<int>(ranks_of_stage.size()); ++stage) {
    const int ranks = ranks_of_stage[static_cast<std::size_t>(stage)];
    const int first = static_cast<int>(schedule.ranks.size());
    for (std::size_t route = 0; route < schedule.routes.size(); ++route) {
      schedule.routes[route].push_back(first + static_cast<int>(route) % ranks);
    }
    behind -= ranks;
    // Once the pipeline is full, each rank of the later stages has one micro of this one. Ranks of a later stage that
    // take turns finish out of step with this one, so one more keeps them from waiting for it.
    const auto later = ranks_of_stage.subspan(static_cast<std::size_t>(stage) + 1);
    const bool in_turns = std::ranges::any_of(later, [](int other) { return other > 1; });
    const int ahead = (behind + ranks - 1) / ranks + (in_turns ? 1 : 0);
    for (int turn = 0; turn < ranks; ++turn) {
      std::vector<int> mine;
      for (int micro = 0; micro < micros; ++micro) {
        if (schedule.route_of[static_cast<std::size_t>(micro)] % ranks == turn) mine.push_back(micro);
      }
      auto& list = schedule.ranks.emplace_back();
      for (int i = 0; i < static_cast<int>(mine.size()) + ahead; ++i) {
        if (i < static_cast<int>(mine.size()))
          list.push_back(make(Op::kForward, stage, mine[static_cast<std::size_t>(i)]));
        if (i >= ahead && i - ahead < static_cast<int>(mine.size())) {
          list.push_back(make(Op::kBackward, stage, mine[static_cast<std::size_t>(i - ahead)]));
        }
      }
    }
  }
  return schedule;
}

}  // namespace trireme::schedule
