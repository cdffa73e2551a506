// Chimera (Li and Hoefler 2021, 2107.06925): two pipelines of 1F1B in opposite directions, each with half of the
// micros. What one of them leaves idle, the other fills: bubbles are half as long, at twice the weights.
//
// With more micros than ranks its units follow each other (section 3.5), in one of three ways: as they are, with
// doubled forwards, or with halved backwards. The last two make a forward pass as long as a backward pass, so that no
// gap is left between units.
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

/// Units of as many passes as ranks; the next one begins where this one ends on the first rank that is free (direct
/// concatenation). A last unit with fewer micros is a whole one with the others left out. `joined`: micros that a
/// forward takes at once, whose backwards follow each other.
Schedule build_units(std::string_view name, int ranks, int micros, int joined) {
  const int unit_micros = ranks * joined, units = (micros + unit_micros - 1) / unit_micros, half = ranks / 2;
  Schedule schedule = two_way(name, {.ranks = ranks, .micros = units * unit_micros, .chunks_per_rank = 2});
  for (int micro = 0; micro < schedule.micros; ++micro) {
    schedule.route_of[static_cast<std::size_t>(micro)] = micro / joined % 2;
  }
  const Op forward = joined == 2 ? Op::kForwardDoubled : Op::kForward;
  for (int rank = 0; rank < ranks; ++rank) {
    // With forward and backward of one unit of time each, no two passes fall onto the same slot when ranks are even:
    // the directions meet on even and on odd times. That order serves any times.
    std::vector<Slot> slots;
    for (int unit = 0; unit < units; ++unit) {
      for (int local = 0; local < half; ++local) {
        for (int route = 0; route < 2; ++route) {
          const int chunk = route == 0 ? rank : ranks - 1 - rank;
          const int micro = joined * (unit * ranks + 2 * local + route), start = 2 * ranks * unit + 2 * local;
          slots.push_back({start + chunk, make(forward, chunk, micro)});
          for (int i = 0; i < joined; ++i) {
            slots.push_back({start + 2 * ranks - 1 - chunk, make(Op::kBackward, chunk, micro + i)});
          }
        }
      }
    }
    std::ranges::stable_sort(slots, {}, &Slot::time);
    for (const Slot& slot : slots) schedule.ranks[static_cast<std::size_t>(rank)].push_back(slot.instruction);
  }
  return keep_micros(std::move(schedule), micros);
}

Schedule build_chimera(const Shape& shape) { return build_units("chimera", shape.ranks, shape.micros, 1); }

Schedule build_chimera_doubling(const Shape& shape) {
  return build_units("chimera-doubling", shape.ranks, shape.micros, 2);
}

Schedule build_chimera_halving(const Shape& shape) {
  Schedule schedule = build_units("chimera-halving", shape.ranks, 2 * shape.micros, 2);
  schedule.micro_parts = 2;
  return schedule;
}

std::string chimera_refuses(const Shape& shape) {
  if (shape.ranks % 2 != 0) return fmt::format("its two directions meet between two ranks, so {} is odd", shape.ranks);
  if (shape.micros % 2 != 0) return fmt::format("half of the micros enter at each end, so {} is odd", shape.micros);
  return needs_two_chunks(shape);  // one of each direction
}

std::string chimera_doubling_refuses(const Shape& shape) {
  if (shape.micros < 4)
    return fmt::format("a forward takes two micros, so {} reach one of its two directions only", shape.micros);
  return chimera_refuses(shape);
}

std::string chimera_halving_refuses(const Shape& shape) {
  if (shape.micro_rows == 1) return "a backward takes half of a micro-batch, but that has one sequence";
  return chimera_refuses(shape);
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

/// D-2 passes of equal length, whatever the number of units, when a backward takes twice as long as a forward: of two
/// micros forward or one back, (D-2)/(3N/2+D-2); of a micro forward or half of one back, half of that.
std::optional<double> equalised_bubble(const Shape& shape, const Times& times, int joined, double pass) {
  if (times.backward() != 2 * times.forward || shape.micros % (shape.ranks * joined) != 0) return std::nullopt;
  return idle_share((shape.ranks - 2) * pass, shape, times);
}

/// D at the most, on the first and last rank (table 2); twice that with doubled forwards (section 3.5).
std::optional<double> chimera_memory(const Shape& shape, int joined) {
  if (shape.micros < shape.ranks * joined) return std::nullopt;
  return shape.ranks * joined;
}

std::optional<double> two_copies(const Shape&) { return 2; }

}  // namespace

Kind chimera() {
  return {.name = "chimera",
          .what = "1f1b in two directions at once",
          .from = "Li and Hoefler 2021, 2107.06925",
          .default_chunks = 2,
          .build = build_chimera,
          .refuses = chimera_refuses,
          .bubble = chimera_bubble,
          .memory = [](const Shape& shape) { return chimera_memory(shape, 1); },
          .weights = two_copies};
}

Kind chimera_doubling() {
  return {.name = "chimera-doubling",
          .what = "the same; a forward takes two micros, a backward one",
          .from = "Li and Hoefler 2021, 2107.06925, section 3.5",
          .default_chunks = 2,
          .build = build_chimera_doubling,
          .refuses = chimera_doubling_refuses,
          .bubble = [](const Shape& shape,
                       const Times& times) { return equalised_bubble(shape, times, 2, 2 * times.forward); },
          .memory = [](const Shape& shape) { return chimera_memory(shape, 2); },
          .weights = two_copies};
}

Kind chimera_halving() {
  return {
      .name = "chimera-halving",
      .what = "the same; a forward takes a micro-batch, a backward half of one",
      .from = "Li and Hoefler 2021, 2107.06925, section 3.5",
      .default_chunks = 2,
      .build = build_chimera_halving,
      .refuses = chimera_halving_refuses,
      .bubble = [](const Shape& shape, const Times& times) { return equalised_bubble(shape, times, 1, times.forward); },
      .memory = [](const Shape& shape) { return chimera_memory(shape, 1); },
      .weights = two_copies};
}

}  // namespace trireme::schedule
