// GPipe (Huang et al. 2018, 1811.06965): all forwards, then all backwards.
#include "trireme/schedule/builders.h"

namespace trireme::schedule {

namespace {

Schedule build_gpipe(const Shape& shape) {
  Schedule schedule = looped("gpipe", shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    auto& list = schedule.ranks[static_cast<std::size_t>(rank)];
    for (int micro = 0; micro < shape.micros; ++micro) list.push_back(make(Op::kForward, rank, micro));
    // Last in, first out: the order that differentiating the recorded forwards gives (torchgpipe, section 3.2).
    for (int micro = shape.micros - 1; micro >= 0; --micro) list.push_back(make(Op::kBackward, rank, micro));
  }
  return schedule;
}

/// (p-1)/(m+p-1): section 2.
std::optional<double> gpipe_bubble(const Shape& shape, const Times& times) {
  return idle_share((shape.ranks - 1) * (times.forward + times.backward()), shape, times);
}

}  // namespace

Kind gpipe() {
  return {.name = "gpipe",
          .what = "all forwards, then all backwards",
          .from = "Huang et al. 2018, 1811.06965",
          .build = build_gpipe,
          .refuses = needs_one_chunk,
          .bubble = gpipe_bubble,
          .memory = [](const Shape& shape) -> std::optional<double> { return shape.micros; }};
}

}  // namespace trireme::schedule
