// PipeDream-2BW (Narayanan et al. 2020, 2006.09503): 1F1B that never flushes, with the gradients of several micros in
// one update and two versions of the weights: W(t+1) = W(t) - lr * gradient at W(t-1), on every rank.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/schedule/builders.h"
#include "trireme/schedule/versions.h"

namespace trireme::schedule {

namespace {

Schedule build_2bw(const Shape& shape) {
  const Schedule plain = unflushed("pipedream-2bw", shape, shape.micros, WeightChoice::kDoubleBuffer);
  VersionUses wanted(plain.chunks(), plain.micros);
  for (int chunk = 0; chunk < plain.chunks(); ++chunk) {
    for (int micro = 0; micro < plain.micros; ++micro)
      wanted.forward(chunk, micro) = wanted.backward(chunk, micro) = std::max(0, plain.step_of(micro) - 1);
  }
  return add_stashes(plain, wanted);
}

std::string pipedream_2bw_refuses(const Shape& shape) {
  // With fewer, more than one update would be made while a micro is in flight, so two versions would not be enough.
  if (shape.micros < shape.ranks)
    return fmt::format("{} micros an update are fewer than the {} that are in flight at once", shape.micros,
                       shape.ranks);
  return needs_one_chunk(shape);
}

}  // namespace

Kind pipedream_2bw() {
  return {.name = "pipedream-2bw",
          .what = "1f1b without a flush in two weight versions, all one update late",
          .from = "Narayanan et al. 2020, 2006.09503",
          .steady = true,
          .asynchronous = true,
          .build = build_2bw,
          .refuses = pipedream_2bw_refuses,
          .bubble = no_bubble,
          .memory = [](const Shape& shape) -> std::optional<double> { return shape.ranks; },
          .weights = [](const Shape& shape) -> std::optional<double> {
            // A table that ends before the third step never updates while a micro still needs what was before.
            if (shape.steps < 2) return std::nullopt;
            return 2;
          }};
}

}  // namespace trireme::schedule
