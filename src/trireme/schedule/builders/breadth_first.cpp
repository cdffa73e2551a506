// Breadth-first looped pipeline (Lamy-Poirier 2022, 2211.05953): all micros through a chunk before the next chunk, so
// that a chunk's weights are gathered and its gradients reduced once a step.
#include "trireme/schedule/builders.h"

namespace trireme::schedule {

namespace {

Schedule build_breadth_first(const Shape& shape) {
  Schedule schedule = looped("breadth-first", shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    auto& list = schedule.ranks[static_cast<std::size_t>(rank)];
    const auto pass = [&](Op op, int turn) {
      for (int micro = 0; micro < shape.micros; ++micro) list.push_back(make(op, turn * shape.ranks + rank, micro));
    };
    for (int turn = 0; turn < shape.chunks_per_rank; ++turn) pass(Op::kForward, turn);
    for (int turn = shape.chunks_per_rank - 1; turn >= 0; --turn) pass(Op::kBackward, turn);
  }
  return schedule;
}

std::optional<double> breadth_first_bubble(const Shape& shape, const Times& times) {
  if (shape.micros < shape.ranks) return std::nullopt;  // a turn then takes longer than its micros
  const double fill = (shape.ranks - 1) * (times.forward + times.backward());
  return idle_share(fill / shape.chunks_per_rank, shape, times);
}

}  // namespace

Kind breadth_first() {
  return {.name = "breadth-first",
          .what = "all micros through a chunk before the next chunk",
          .from = "Lamy-Poirier 2022, 2211.05953",
          .default_chunks = 2,
          .build = build_breadth_first,
          .bubble = breadth_first_bubble,
          .memory = [](const Shape& shape) -> std::optional<double> { return shape.micros; }};
}

}  // namespace trireme::schedule
