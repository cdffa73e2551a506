#include "trireme/schedule/passes.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/interleave.h"

namespace trireme::schedule {

namespace {

/// Where the gradients of one rank are complete: of each chunk in each step, and of all chunks.
struct Completions {
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);
  std::vector<std::vector<std::size_t>> of_chunk;  // [step][index in the rank's chunks]
  std::vector<std::size_t> of_step;

  Completions(const Schedule& schedule, const std::vector<Instruction>& list, const std::vector<int>& held)
      : of_chunk(static_cast<std::size_t>(schedule.steps()), std::vector<std::size_t>(held.size(), kNever)),
        of_step(of_chunk.size(), kNever) {
    for (std::size_t position = 0; position < list.size(); ++position) {
      if (!does_weight_gradient(list[position])) continue;
      const auto step = static_cast<std::size_t>(schedule.step_of(backward_micro(list[position])));
      const auto chunk = std::ranges::find(held, backward_chunk(list[position])) - held.begin();
      of_chunk[step][static_cast<std::size_t>(chunk)] = of_step[step] = position;
    }
  }
};

std::vector<Instruction> with_updates(const Schedule& schedule, int rank) {
  const auto& list = schedule.ranks[static_cast<std::size_t>(rank)];
  const std::vector<int> held = chunks_of(schedule, rank);
  std::vector<bool> shared;
  for (const int chunk : held) shared.push_back(holders_of(schedule, chunk).size() > 1);
  const Completions complete(schedule, list, held);
  std::vector<Instruction> with;
  with.reserve(list.size() + complete.of_step.size() * (held.size() + 1));
  std::size_t step = 0;
  for (std::size_t position = 0; position < list.size(); ++position) {
    with.push_back(list[position]);
    if (step == complete.of_step.size()) continue;
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (!shared[i] && complete.of_chunk[step][i] == position) with.push_back(make(Op::kReduceGradients, held[i], -1));
    }
    if (complete.of_step[step] != position) continue;
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (shared[i]) with.push_back(make(Op::kReduceGradients, held[i], -1));
    }
    with.push_back(make(Op::kOptimizerStep, -1, -1));
    ++step;
  }
  return with;
}

}  // namespace

Schedule keep_micros(Schedule schedule, int micros) {
  for (auto& list : schedule.ranks) {
    for (Instruction& it : list) {
      if (it.op != Op::kForwardBackward) continue;
      const bool forward = it.micro < micros, backward = it.back_micro < micros;
      if (forward && !backward) it = make(Op::kForward, it.chunk, it.micro);
      if (backward && !forward) it = make(Op::kBackward, it.back_chunk, it.back_micro);
    }
    std::erase_if(list, [&](const Instruction& it) { return it.micro >= micros; });
  }
  schedule.micros = std::min(schedule.micros, micros);
  if (!schedule.route_of.empty()) schedule.route_of.resize(static_cast<std::size_t>(schedule.micros));
  return schedule;
}

Schedule add_recompute(const Schedule& schedule) {
  Schedule result = schedule;
  for (auto& list : result.ranks) {
    std::vector<Instruction> with;
    with.reserve(2 * list.size());
    for (const Instruction& it : list) {
      if (does_input_gradient(it)) {
        const int chunk = backward_chunk(it), micro = backward_micro(it);
        const bool at_once = !with.empty() && with.back() == make(Op::kForward, chunk, micro);
        if (!at_once) with.push_back(make(Op::kRecompute, chunk, micro));
      }
      with.push_back(it);
    }
    list = std::move(with);
  }
  return result;
}

bool has_updates(const Schedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const auto& list) {
    return std::ranges::any_of(
        list, [](const Instruction& it) { return it.op == Op::kOptimizerStep || it.op == Op::kReduceGradients; });
  });
}

Schedule add_updates(const Schedule& schedule) {
  TRIREME_CHECK(!has_updates(schedule), "schedule {} has its updates already", schedule.name);
  TRIREME_CHECK(!has_parts(schedule), "schedule {} is cut into parts already", schedule.name);
  Schedule result = schedule;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    result.ranks[rank] = with_updates(schedule, static_cast<int>(rank));
  return result;
}

Schedule repeat(const Schedule& schedule, int steps) {
  TRIREME_CHECK(schedule.steps() == 1, "schedule {} has {} steps; only a single one is repeated", schedule.name,
                schedule.steps());
  Schedule result = schedule;
  if (steps == 1) return result;
  result.micros = steps * schedule.micros;
  result.update_every = schedule.micros;
  for (int step = 1; step < steps; ++step) {
    result.route_of.insert(result.route_of.end(), schedule.route_of.begin(), schedule.route_of.end());
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (Instruction it : schedule.ranks[rank]) {
        if (it.micro >= 0) it.micro += is_version(it.op) ? step : step * schedule.micros;
        if (it.back_micro >= 0) it.back_micro += step * schedule.micros;
        result.ranks[rank].push_back(it);
      }
    }
  }
  return result;
}

Schedule complete(const Schedule& schedule) {
  if (has_parts(schedule)) return schedule;
  const Schedule updated = has_updates(schedule) || has_transfers(schedule) ? schedule : add_updates(schedule);
  return has_transfers(updated) ? updated : add_transfers(updated);
}

}  // namespace trireme::schedule
