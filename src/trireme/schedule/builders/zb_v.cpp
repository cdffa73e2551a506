// ZB-V (Qi et al. 2023, 2401.10241, section 6): two chunks a rank, down the ranks and up again, so that the rank that
// starts a micro also ends it; with equal times no idle time remains, at 1F1B's memory.
#include <algorithm>

#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"

namespace trireme::schedule {

namespace {

struct ZbvRank {
  int down, up;  // its chunks, before and after the turn
  std::vector<Instruction>& list;
  int forwards[2] = {0, 0}, inputs[2] = {0, 0}, weights[2] = {0, 0};

  int chunk(int half) const { return half == 0 ? down : up; }
  void forward(int half) { list.push_back(make(Op::kForward, chunk(half), forwards[half]++)); }
  void input(int half) { list.push_back(make(Op::kBackwardInput, chunk(half), inputs[half]++)); }
  void weight(int half) { list.push_back(make(Op::kBackwardWeight, chunk(half), weights[half]++)); }
  void backward(int half) {
    input(half);
    weight(half);
  }
};

Schedule build_zb_v(const Shape& shape) {
  // Fewer micros than fill the pipeline: as in a full one, with the last ones left out.
  const int micros = std::max(shape.micros, 2 * shape.ranks - 1);
  Schedule schedule = folded("zb-v", {.ranks = shape.ranks, .micros = micros, .chunks_per_rank = 2});
  for (int index = 0; index < shape.ranks; ++index) {
    ZbvRank rank{index, 2 * shape.ranks - 1 - index, schedule.ranks[static_cast<std::size_t>(index)]};
    const int distance = shape.ranks - index;  // to the turn
    for (int i = 0; i < 2 * distance - 1; ++i) rank.forward(0);
    for (int i = 0; i < index; ++i) {
      rank.forward(1);
      rank.forward(0);
    }
    for (int i = 0; i < distance; ++i) {
      rank.forward(1);
      rank.backward(1);
    }
    while (rank.forwards[1] < rank.forwards[0] || rank.forwards[0] < micros) {
      if (rank.forwards[0] < micros) rank.forward(0);
      rank.backward(0);
      rank.forward(1);
      rank.backward(1);
    }
    for (int i = 0; i < index; ++i) {
      rank.input(0);
      rank.input(1);
    }
    for (int i = 0; i < distance; ++i) {
      rank.input(0);
      rank.weight(0);
    }
    while (rank.weights[1] < rank.inputs[1]) rank.weight(1);
    while (rank.weights[0] < rank.inputs[0]) rank.weight(0);
  }
  return keep_micros(std::move(schedule), shape.micros);
}

/// None with equal times and micros enough: section 6.
std::optional<double> zb_v_bubble(const Shape& shape, const Times& times) {
  const bool equal = times.forward == times.backward_input && times.forward == times.backward_weight;
  if (!equal || shape.micros < 2 * shape.ranks - 1) return std::nullopt;
  return 0;
}

}  // namespace

Kind zb_v() {
  return {.name = "zb-v",
          .what = "zero bubble over two chunks, down the ranks and up again",
          .from = "Qi et al. 2023, 2401.10241",
          .default_chunks = 2,
          .steady = true,
          .build = build_zb_v,
          .refuses = needs_two_chunks,
          .bubble = zb_v_bubble,
          .memory = [](const Shape& shape) -> std::optional<double> {
            if (shape.micros < 2 * shape.ranks - 1) return std::nullopt;
            return shape.ranks;
          }};
}

}  // namespace trireme::schedule
