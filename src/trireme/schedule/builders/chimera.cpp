// Chimera (Li and Hoefler 2021, 2107.06925): two pipelines of 1F1B in opposite directions, each with half of the
// micros. What one of them leaves idle, the other fills: bubbles are half as long, at twice the weights.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"

namespace trireme::schedule {

namespace {

struct Slot {
  int time;
  Instruction instruction;
};

Schedule build_chimera(const Shape& shape) {
  // A unit has as many micros as ranks. The next unit begins where this one ends on the first rank that is free
  // (section 3.5, direct concatenation); a last unit with fewer micros is a whole one with the others left out.
  const int ranks = shape.ranks, units = (shape.micros + ranks - 1) / ranks, half = ranks / 2;
  Shape whole = shape;
  whole.micros = units * ranks;
  Schedule schedule = two_way("chimera", whole);
  for (int micro = 0; micro < whole.micros; ++micro) schedule.route_of[static_cast<std::size_t>(micro)] = micro % 2;
  for (int rank = 0; rank < ranks; ++rank) {
    // With forward and backward of one unit of time each, no two passes fall onto the same slot when ranks are even:
    // the directions meet on even and on odd times. That order serves any times.
    std::vector<Slot> slots;
    for (int unit = 0; unit < units; ++unit) {
      for (int local = 0; local < half; ++local) {
        for (int route = 0; route < 2; ++route) {
          const int chunk = route == 0 ? rank : ranks - 1 - rank, micro = unit * ranks + 2 * local + route;
          const int start = 2 * ranks * unit + 2 * local;
          slots.push_back({start + chunk, make(Op::kForward, chunk, micro)});
          slots.push_back({start + 2 * ranks - 1 - chunk, make(Op::kBackward, chunk, micro)});
        }
      }
    }
    std::ranges::sort(slots, {}, &Slot::time);
    for (const Slot& slot : slots) schedule.ranks[static_cast<std::size_t>(rank)].push_back(slot.instruction);
  }
  return keep_micros(std::move(schedule), shape.micros);
}

std::string chimera_refuses(const Shape& shape) {
  if (shape.ranks % 2 != 0) return fmt::format("its two directions meet between two ranks, so {} is odd", shape.ranks);
  if (shape.micros % 2 != 0) return fmt::format("half of the micros enter at each end, so {} is odd", shape.micros);
  return needs_two_chunks(shape);  // one of each direction
}

/// (D-2)/(2N+D-2) when a backward takes as long as a forward; (D-2)/(3N/2+D-2) for one unit when it takes twice as
/// long (table 2 and section 3.2).
std::optional<double> chimera_bubble(const Shape& shape, const Times& times) {
  const double forward = times.forward, backward = times.backward();
  const int depth = shape.ranks;
  if (backward == forward && shape.micros % depth == 0) return idle_share((depth - 2) * forward, shape, times);
  if (backward == 2 * forward && shape.micros == depth) return idle_share(2 * (depth - 2) * forward, shape, times);
  return std::nullopt;
}

/// D at the most, on the first and last rank (table 2).
std::optional<double> chimera_memory(const Shape& shape) {
  if (shape.micros < shape.ranks) return std::nullopt;
  return shape.ranks;
}

}  // namespace

Kind chimera() {
  return {.name = "chimera",
          .what = "1f1b in two directions at once",
          .from = "Li and Hoefler 2021, 2107.06925",
          .default_chunks = 2,
          .build = build_chimera,
          .refuses = chimera_refuses,
          .bubble = chimera_bubble,
          .memory = chimera_memory,
          .weights = [](const Shape&) -> std::optional<double> { return 2; }};
}

}  // namespace trireme::schedule
