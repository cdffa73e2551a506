// Zero-bubble schedules with one chunk a rank (Qi et al. 2023, 2401.10241): the gradient of the weights waits until
// the rank would otherwise idle. H1 holds no more micros than 1F1B's first rank, H2 twice as many.
#include <algorithm>

#include "trireme/schedule/builders.h"

namespace trireme::schedule {

namespace {

/// The papers' figures are for equal times; with others the best order is another one.
bool times_fit_zb_h(const Times& times) {
  return times.forward == times.backward_input && times.forward == times.backward_weight;
}

/// `limit`: how many micros a rank may hold, from their forward until their weight gradient.
std::vector<Instruction> zero_bubble_rank(int rank, int micros, int ahead, int limit) {
  std::vector<Instruction> list;
  int forwards = 0, inputs = 0, weights = 0;
  const auto forward = [&] { list.push_back(make(Op::kForward, rank, forwards++)); };
  const auto input = [&] { list.push_back(make(Op::kBackwardInput, rank, inputs++)); };
  const auto weight = [&] { list.push_back(make(Op::kBackwardWeight, rank, weights++)); };

  while (forwards < std::min(ahead, micros)) forward();
  // Weight gradients at once at first, so that memory is free at the end: there the ranks far down skip them, which
  // sends the last gradients up at the pace at which the first rank, with nothing left to forward, can take them.
  const int skip_from = micros - limit;
  while (forwards < micros) {
    input();
    if (inputs <= skip_from) weight();
    forward();
  }
  while (inputs < micros) {
    input();
    weight();
  }
  while (weights < micros) weight();
  return list;
}

/// Each rank starts with `more` more forwards than the one below it, the last one with a single one.
Schedule build(std::string_view name, const Shape& shape, int more, int limit) {
  Schedule schedule = looped(name, shape);
  for (int rank = 0; rank < shape.ranks; ++rank)
    schedule.ranks[static_cast<std::size_t>(rank)] =
        zero_bubble_rank(rank, shape.micros, 1 + more * (shape.ranks - 1 - rank), limit);
  return schedule;
}

}  // namespace

Kind zb_h1() {
  return {.name = "zb-h1",
          .what = "1f1b with weight gradients deferred, in 1f1b's memory",
          .from = "Qi et al. 2023, 2401.10241",
          .build = [](const Shape& shape) { return build("zb-h1", shape, 1, shape.ranks); },
          .refuses = needs_one_chunk,
          // (p-1)(f+b-w) idle on each rank: table 1.
          .bubble = [](const Shape& shape, const Times& times) -> std::optional<double> {
            if (shape.micros < shape.ranks || !times_fit_zb_h(times)) return std::nullopt;
            return idle_share((shape.ranks - 1) * (times.forward + times.backward_input - times.backward_weight), shape,
                              times);
          },
          .memory = [](const Shape& shape) -> std::optional<double> { return std::min(shape.ranks, shape.micros); }};
}

Kind zb_h2() {
  return {.name = "zb-h2",
          .what = "the same in twice the memory, without idle time between steps",
          .from = "Qi et al. 2023, 2401.10241",
          .steady = true,
          .build = [](const Shape& shape) { return build("zb-h2", shape, 2, 2 * shape.ranks - 1); },
          .refuses = needs_one_chunk,
          // (p-1)(f+b-2w) idle between steps: table 1.
          .bubble = [](const Shape& shape, const Times& times) -> std::optional<double> {
            if (shape.micros < 2 * shape.ranks - 1 || !times_fit_zb_h(times)) return std::nullopt;
            return idle_share((shape.ranks - 1) * (times.forward + times.backward_input - 2 * times.backward_weight),
                              shape, times);
          },
          .memory = [](const Shape& shape) -> std::optional<double> {
            return std::min(2 * shape.ranks - 1, shape.micros);
          }};
}

}  // namespace trireme::schedule
