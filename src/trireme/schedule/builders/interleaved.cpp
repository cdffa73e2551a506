// Interleaved 1F1B (Narayanan et al. 2021, 2104.04473): each rank holds several chunks, one turn of all ranks apart.
#include <algorithm>

#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"

namespace trireme::schedule {

namespace {

/// The order in which a rank meets its chunks: micros advance in groups of `ranks`, each group through all chunks.
struct Order {
  int ranks, turns;

  Instruction unit(Op op, int rank, int index) const {
    const int in_group = index % (ranks * turns);
    const int turn = op == Op::kForward ? in_group / ranks : turns - 1 - in_group / ranks;
    return make(op, turn * ranks + rank, index / (ranks * turns) * ranks + index % ranks);
  }
};

Schedule build_interleaved(const Shape& shape) {
  // The order is defined on whole groups. Other counts take the next whole one and leave out what is too many: that
  // cannot make a rank wait for anything new, while shorter last groups could deadlock.
  const int groups = (shape.micros + shape.ranks - 1) / shape.ranks;
  const Shape whole{.ranks = shape.ranks, .micros = groups * shape.ranks, .chunks_per_rank = shape.chunks_per_rank};
  const Order order{shape.ranks, shape.chunks_per_rank};
  const int units = whole.micros * shape.chunks_per_rank;
  Schedule schedule = looped("interleaved", whole);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const int distance = shape.ranks - 1 - rank;
    // With one chunk this is plain 1F1B. With more, the gradient of the first group comes back through every turn but
    // one, and each rank further up waits for two more units: one there, one back.
    const int wanted = shape.chunks_per_rank == 1 ? distance : 2 * distance + (shape.chunks_per_rank - 1) * shape.ranks;
    const int ahead = std::min(units, wanted);
    auto& list = schedule.ranks[static_cast<std::size_t>(rank)];
    for (int index = 0; index < ahead; ++index) list.push_back(order.unit(Op::kForward, rank, index));
    for (int index = ahead; index < units; ++index) {
      list.push_back(order.unit(Op::kForward, rank, index));
      list.push_back(order.unit(Op::kBackward, rank, index - ahead));
    }
    for (int index = units - ahead; index < units; ++index) list.push_back(order.unit(Op::kBackward, rank, index));
  }
  return keep_micros(std::move(schedule), shape.micros);
}

/// (p-1)/(vm+p-1): section 2.2; for whole groups only.
std::optional<double> interleaved_bubble(const Shape& shape, const Times& times) {
  if (shape.micros % shape.ranks != 0) return std::nullopt;
  const double fill = (shape.ranks - 1) * (times.forward + times.backward());
  return idle_share(fill / shape.chunks_per_rank, shape, times);
}

/// p (1 + (p-1)/(pv)): 2205.05198, section 4.2.3; where there are micros enough to reach it.
std::optional<double> interleaved_memory(const Shape& shape) {
  const int turns = shape.chunks_per_rank;
  const int units = turns == 1 ? shape.ranks : 2 * (shape.ranks - 1) + (turns - 1) * shape.ranks + 1;
  if (shape.micros % shape.ranks != 0) return std::nullopt;
  return static_cast<double>(std::min(units, shape.micros * turns)) / turns;
}

}  // namespace

Kind interleaved() {
  return {.name = "interleaved",
          .what = "1f1b over several chunks a rank",
          .from = "Narayanan et al. 2021, 2104.04473",
          .default_chunks = 2,
          .build = build_interleaved,
          .bubble = interleaved_bubble,
          .memory = interleaved_memory};
}

}  // namespace trireme::schedule
