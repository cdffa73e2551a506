// 1F1B with a flush (PipeDream-Flush, Narayanan et al. 2020, 2006.09503; DAPPLE, Fan et al. 2020, 2007.01045).
#include <algorithm>

#include "trireme/schedule/builders.h"

namespace trireme::schedule {

namespace {

Schedule build_one_f_one_b(const Shape& shape) {
  Schedule schedule = looped("1f1b", shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    // A rank may run ahead of the last one by exactly the distance to it; running further ahead would hold
    // activations longer without filling any bubble.
    const int ahead = std::min(shape.micros, shape.ranks - 1 - rank);
    auto& list = schedule.ranks[static_cast<std::size_t>(rank)];
    for (int micro = 0; micro < ahead; ++micro) list.push_back(make(Op::kForward, rank, micro));
    for (int micro = ahead; micro < shape.micros; ++micro) {
      list.push_back(make(Op::kForward, rank, micro));
      list.push_back(make(Op::kBackward, rank, micro - ahead));
    }
    for (int micro = shape.micros - ahead; micro < shape.micros; ++micro)
      list.push_back(make(Op::kBackward, rank, micro));
  }
  return schedule;
}

/// (p-1)/(m+p-1): 2006.09503, section 2; the same as GPipe's.
std::optional<double> one_f_one_b_bubble(const Shape& shape, const Times& times) {
  return idle_share((shape.ranks - 1) * (times.forward + times.backward()), shape, times);
}

}  // namespace

Kind one_f_one_b() {
  return {.name = "1f1b",
          .what = "one forward, one backward, with a flush",
          .from = "PipeDream-Flush 2020, 2006.09503; DAPPLE 2020, 2007.01045",
          .build = build_one_f_one_b,
          .refuses = needs_one_chunk,
          .bubble = one_f_one_b_bubble,
          .memory = [](const Shape& shape) -> std::optional<double> { return std::min(shape.ranks, shape.micros); }};
}

}  // namespace trireme::schedule
