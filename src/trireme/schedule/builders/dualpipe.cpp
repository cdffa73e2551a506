// DualPipe (DeepSeek-V3, 2412.19437) and DualPipeV, its half: micros run through a rank in two directions, and the
// forward of one direction overlaps the backward of the other.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "trireme/schedule/builders.h"

namespace trireme::schedule {

namespace {

/// The bubble is published for a rank whose passes are in step with its neighbours'.
bool times_fit_dualpipe(const Times& times) {
  return times.forward == times.backward_input && times.forward == times.backward_weight && !times.overlapped;
}

/// One rank's list. Direction 0 is the one that reaches this rank first.
struct DualPipeRank {
  std::pair<int, int> chunk;        // by direction
  std::pair<int, int> first_micro;  // by direction
  std::vector<Instruction>& list;
  int forwards[2] = {0, 0}, backwards[2] = {0, 0};
  std::deque<Instruction> deferred{};  // weight gradients still to do

  int chunk_in(int direction) const { return direction == 0 ? chunk.first : chunk.second; }
  int base(int direction) const { return direction == 0 ? first_micro.first : first_micro.second; }

  void forward(int direction) {
    list.push_back(make(Op::kForward, chunk_in(direction), base(direction) + forwards[direction]++));
  }
  void backward(int direction) {
    list.push_back(make(Op::kBackward, chunk_in(direction), base(direction) + backwards[direction]++));
  }
  void input(int direction) {
    const int micro = base(direction) + backwards[direction]++;
    list.push_back(make(Op::kBackwardInput, chunk_in(direction), micro));
    deferred.push_back(make(Op::kBackwardWeight, chunk_in(direction), micro));
  }
  void weight() {
    list.push_back(deferred.front());
    deferred.pop_front();
  }
  void overlap(int forward_direction, int backward_direction) {
    list.push_back(make_pair(chunk_in(forward_direction), base(forward_direction) + forwards[forward_direction]++,
                             chunk_in(backward_direction), base(backward_direction) + backwards[backward_direction]++));
  }
};

/// `index`: distance from where direction 0 enters; `turn`: from there to where the directions are equally far, which
/// is the middle of the ranks, or the fold; `micros`: of one direction.
void fill(DualPipeRank& rank, int index, int turn, int micros) {
  const int distance = turn - 1 - index;
  for (int i = 0; i < 2 * distance; ++i) rank.forward(0);
  for (int i = 0; i <= index; ++i) {
    rank.forward(0);
    rank.forward(1);
  }
  for (int i = 0; i < distance; ++i) {
    rank.input(1);
    rank.weight();
    rank.forward(1);
  }
  for (int i = 0; i < micros - 2 * turn + index + 1; ++i) {
    if (i == 0 && distance == 0) {
      // Not overlapped: at the turn the first backward would otherwise hold up the forward its neighbour waits for.
      rank.forward(0);
      rank.backward(1);
    } else {
      rank.overlap(0, 1);
    }
    rank.overlap(1, 0);
  }
  for (int i = 0; i < distance; ++i) {
    rank.backward(1);
    rank.overlap(1, 0);
  }
  // From the middle of this phase on weight gradients are deferred: nobody waits for them, and they fill the end.
  const int phase = index + 1;
  for (int i = 0; i < phase; ++i) {
    const bool first_defers = i > phase / 2 || (i == phase / 2 && index % 2 == 1);
    first_defers ? rank.input(1) : rank.backward(1);
    i >= phase / 2 ? rank.input(0) : rank.backward(0);
  }
  for (int i = 0; i < distance; ++i) {
    rank.weight();
    rank.input(0);
  }
  while (!rank.deferred.empty()) rank.weight();
}

Schedule build_dualpipe_v(const Shape& shape) {
  Schedule schedule = folded("dualpipe-v", shape);
  for (int index = 0; index < shape.ranks; ++index) {
    DualPipeRank rank{{index, 2 * shape.ranks - 1 - index}, {0, 0}, schedule.ranks[static_cast<std::size_t>(index)]};
    fill(rank, index, shape.ranks, shape.micros);
  }
  return schedule;
}

Schedule build_dualpipe(const Shape& shape) {
  Schedule schedule = two_way("dualpipe", shape);
  const int half = shape.micros / 2, last = shape.ranks - 1;
  std::fill(schedule.route_of.begin() + half, schedule.route_of.end(), 1);
  for (int index = 0; index < shape.ranks; ++index) {
    auto& list = schedule.ranks[static_cast<std::size_t>(index)];
    // The upper half sees the mirror image: what enters at the last rank reaches it first.
    if (index < shape.ranks / 2) {
      DualPipeRank rank{{index, last - index}, {0, half}, list};
      fill(rank, index, shape.ranks / 2, half);
    } else {
      DualPipeRank rank{{last - index, index}, {half, 0}, list};
      fill(rank, last - index, shape.ranks / 2, half);
    }
  }
  return schedule;
}

std::string too_few(const Shape& shape) {
  if (shape.micros >= 2 * shape.ranks) return "";
  return fmt::format("{} micros do not fill it; {} ranks need at least {}", shape.micros, shape.ranks, 2 * shape.ranks);
}

std::string dualpipe_refuses(const Shape& shape) {
  if (shape.ranks % 2 != 0) return fmt::format("its two directions meet between two ranks, so {} is odd", shape.ranks);
  if (shape.micros % 2 != 0) return fmt::format("half of the micros enter at each end, so {} is odd", shape.micros);
  if (const std::string why = too_few(shape); !why.empty()) return why;
  return needs_two_chunks(shape);  // one of each direction
}

/// (p/2-1)(F&B + B - 3W): table 2; its B is the whole backward.
std::optional<double> dualpipe_bubble(const Shape& shape, const Times& times) {
  if (!times_fit_dualpipe(times)) return std::nullopt;
  return idle_share((shape.ranks / 2 - 1) * (times.pair() + times.backward() - 3 * times.backward_weight), shape,
                    times);
}

/// The fold of DualPipe over twice the ranks: a chunk takes half of the times of a rank's share.
std::optional<double> dualpipe_v_bubble(const Shape& shape, const Times& times) {
  if (!times_fit_dualpipe(times)) return std::nullopt;
  return idle_share((shape.ranks - 1) * (times.pair() + times.backward() - 3 * times.backward_weight) / 2, shape,
                    times);
}

}  // namespace

Kind dualpipe() {
  return {.name = "dualpipe",
          .what = "micros from both ends, forward and backward overlapped",
          .from = "DeepSeek-V3 2024, 2412.19437",
          .default_chunks = 2,
          .build = build_dualpipe,
          .refuses = dualpipe_refuses,
          .bubble = dualpipe_bubble,
          .memory = [](const Shape& shape) -> std::optional<double> { return shape.ranks + 1; },
          .weights = [](const Shape&) -> std::optional<double> { return 2; }};
}

Kind dualpipe_v() {
  return {.name = "dualpipe-v",
          .what = "half of dualpipe: two chunks a rank, down the ranks and up again",
          .from = "after DualPipe; Cut-in-half 2025",
          .default_chunks = 2,
          .build = build_dualpipe_v,
          .refuses =
              [](const Shape& shape) {
                const std::string why = too_few(shape);
                return why.empty() ? needs_two_chunks(shape) : why;
              },
          .bubble = dualpipe_v_bubble,
          // 2p+1 activations of half a rank's share.
          .memory = [](const Shape& shape) -> std::optional<double> { return shape.ranks + 0.5; }};
}

}  // namespace trireme::schedule
