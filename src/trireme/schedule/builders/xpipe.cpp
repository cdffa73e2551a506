// XPipe (Guan et al. 2019, 1911.04610): 1F1B that never flushes, with several micros an update. The first micro of a
// step, the bellwether, predicts the weights from Adam's moments, once for its forward and once for its backward on
// each rank; the others of its step compute with its predictions.
#include <algorithm>

#include "trireme/schedule/builders.h"
#include "trireme/schedule/versions.h"

namespace trireme::schedule {

namespace {

/// Micros to come back, in updates: rounded to the nearest, halves up.
int in_updates(int micros, int per_update) { return (2 * micros + per_update) / (2 * per_update); }

Schedule build_xpipe(const Shape& shape) {
  const int mates = shape.micros;
  const Schedule plain = unflushed("xpipe", shape, mates, WeightChoice::kPredictAdam);
  const auto after = backwards_until_round_trip(plain);
  const VersionUses present = present_versions(plain);
  VersionUses wanted(plain.chunks(), plain.micros);
  for (int chunk = 0; chunk < plain.chunks(); ++chunk) {
    const auto c = static_cast<std::size_t>(chunk);
    const int ahead = plain.last_chunk() - chunk;  // micros that came in before the bellwether and are not back yet
    for (int micro = 0; micro < plain.micros; ++micro) {
      const int bellwether = micro / mates * mates;
      // Those of its own step but one, and those that follow until the step has come back to the first rank.
      const int to_come = mates - 1 + after[c][static_cast<std::size_t>(bellwether)];
      wanted.forward(chunk, micro) =
          present.forward(chunk, bellwether) + in_updates(std::min(ahead, bellwether) + to_come, mates);
      wanted.backward(chunk, micro) = present.backward(chunk, bellwether) + in_updates(to_come, mates);
    }
  }
  return add_predictions(plain, wanted, /*shared=*/true);
}

}  // namespace

Kind xpipe() {
  return {.name = "xpipe",
          .what = "1f1b without a flush; weights predicted from Adam's moments by the first micro of a step",
          .from = "Guan et al. 2019, 1911.04610",
          .steady = true,
          .asynchronous = true,
          .build = build_xpipe,
          .refuses = needs_one_chunk,
          .bubble = no_bubble,
          .memory = unflushed_in_flight,
          .weights = [](const Shape&) -> std::optional<double> { return 1; }};
}

}  // namespace trireme::schedule
