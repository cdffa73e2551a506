#include "trireme/schedule/versions.h"

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/schedule/replay.h"

namespace trireme::schedule {

VersionUses::VersionUses(int chunks, int micros)
    : micros_(static_cast<std::size_t>(micros)),
      forward_(static_cast<std::size_t>(chunks) * micros_, -1),
      backward_(forward_) {}

VersionUses present_versions(const Schedule& schedule) {
  VersionUses uses(schedule.chunks(), schedule.micros);
  for (const auto& list : schedule.ranks) {
    int present = 0;
    for (const Instruction& it : list) {
      for (int i = 0; i < forward_count(it); ++i) uses.forward(it.chunk, it.micro + i) = present;
      if (does_input_gradient(it)) uses.backward(backward_chunk(it), backward_micro(it)) = present;
      if (it.op == Op::kOptimizerStep) ++present;
    }
  }
  return uses;
}

int steps_ahead(const Schedule& schedule) {
  int most = 0;
  for (const auto& list : schedule.ranks) {
    int present = 0;
    for (const Instruction& it : list) {
      if (forward_count(it) > 0) most = std::max(most, schedule.step_of(it.micro) - present);
      if (it.op == Op::kOptimizerStep) ++present;
    }
  }
  return most;
}

namespace {

/// The version wanted by a pass; `it` is a forward, a backward or the recomputation before it, not a pair.
int wanted_by(const Instruction& it, const VersionUses& wanted) {
  return does_forward(it) ? wanted.forward(it.chunk, it.micro) : wanted.backward(it.chunk, it.micro);
}

bool is_pass(const Instruction& it) {
  return it.op == Op::kForward || it.op == Op::kForwardDoubled || it.op == Op::kBackward ||
         it.op == Op::kBackwardInput || it.op == Op::kRecompute;
}

/// Whether a recomputation just before has already said which weights this backward takes.
bool is_said(const std::vector<Instruction>& list, std::size_t position) {
  return position > 0 && list[position].op != Op::kRecompute &&
         list[position - 1] == make(Op::kRecompute, list[position].chunk, list[position].micro);
}

using Key = std::pair<int, int>;  // chunk, version

}  // namespace

Schedule add_stashes(const Schedule& schedule, const VersionUses& wanted) {
  Schedule result = schedule;
  for (auto& list : result.ranks) {
    std::map<Key, std::size_t> last_use;
    for (std::size_t position = 0; position < list.size(); ++position) {
      if (is_pass(list[position])) last_use[{list[position].chunk, wanted_by(list[position], wanted)}] = position;
    }
    std::vector<Instruction> with;
    int present = 0;
    for (std::size_t position = 0; position < list.size(); ++position) {
      const Instruction& it = list[position];
      if (it.op == Op::kOptimizerStep) {
        for (const auto& [key, last] : last_use) {
          if (key.second == present && last > position) with.push_back(make(Op::kStashWeights, key.first, present));
        }
        ++present;
      }
      const int version = is_pass(it) ? wanted_by(it, wanted) : present;
      TRIREME_CHECK(version <= present, "{} wants version {} while {} is present", to_text(it, true), version, present);
      if (version != present && !is_said(list, position)) with.push_back(make(Op::kLoadWeights, it.chunk, version));
      with.push_back(it);
      if (version != present && last_use.at({it.chunk, version}) == position)
        with.push_back(make(Op::kDropWeights, it.chunk, version));
    }
    list = std::move(with);
  }
  return result;
}

Schedule add_predictions(const Schedule& schedule, const VersionUses& wanted, bool shared) {
  Schedule result = schedule;
  for (auto& list : result.ranks) {
    std::vector<Instruction> with;
    int present = 0;
    for (std::size_t position = 0; position < list.size(); ++position) {
      const Instruction& it = list[position];
      if (it.op == Op::kOptimizerStep) ++present;
      if (is_pass(it) && !is_said(list, position)) {
        const int version = wanted_by(it, wanted);
        const bool first = schedule.update_every == 0 ? it.micro == 0 : it.micro % schedule.update_every == 0;
        if (shared && !first)
          with.push_back(make(Op::kLoadWeights, it.chunk, version));
        else if (shared || version != present)
          with.push_back(make(Op::kPredictWeights, it.chunk, version));
      }
      with.push_back(it);
    }
    list = std::move(with);
  }
  return result;
}

std::vector<std::vector<int>> backwards_until_round_trip(const Schedule& schedule) {
  const Timing timing = replay(
      schedule,
      {.times = {.forward = 1, .backward_input = 0.5, .backward_weight = 0.5, .recompute = 0}, .keep_spans = true});
  // When each micro has come back through each chunk; in the order of micros, as asynchronous ranks take them.
  std::vector<std::vector<double>> back(static_cast<std::size_t>(schedule.chunks()));
  for (std::size_t rank = 0; rank < timing.ranks.size(); ++rank) {
    for (const Span& span : timing.ranks[rank].spans) {
      if (span.instruction.op == Op::kBackward)
        back[static_cast<std::size_t>(span.instruction.chunk)].push_back(span.end);
    }
  }
  std::vector<std::vector<int>> counts(back.size());
  for (std::size_t chunk = 0; chunk < back.size(); ++chunk) {
    for (int micro = 0; micro < schedule.micros; ++micro) {
      const int every = std::max(1, schedule.update_every);
      const int last_mate = (micro / every + 1) * every - 1;
      const double end = back[0][static_cast<std::size_t>(last_mate)];
      const auto over = std::ranges::upper_bound(back[chunk], end + 1e-9) - back[chunk].begin();
      counts[chunk].push_back(static_cast<int>(over) - 1 - last_mate);
    }
  }
  return counts;
}

}  // namespace trireme::schedule
