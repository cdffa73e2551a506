// SpecTrain (Chen, Yang and Cheng 2018, 1809.02839): 1F1B that never flushes; both passes of a micro compute with a
// prediction, from momentum, of the weights there will be when the micro has come back to the first rank.
#include "trireme/schedule/builders.h"
#include "trireme/schedule/versions.h"

namespace trireme::schedule {

namespace {

Schedule build_spectrain(const Shape& shape) {
  const Schedule plain = unflushed("spectrain", shape, /*update_every=*/1, WeightChoice::kPredictMomentum);
  const auto after = backwards_until_round_trip(plain);
  VersionUses wanted(plain.chunks(), plain.micros);
  for (int chunk = 0; chunk < plain.chunks(); ++chunk) {
    for (int micro = 0; micro < plain.micros; ++micro) {
      // The micro's own update is number `micro`; it aims at what the others make of the weights around it. In the
      // long run that is floor(chunk/2) + ranks - chunk - 1 updates ahead in the forward, floor(chunk/2) in the
      // backward: equations 5 and 6.
      wanted.forward(chunk, micro) = wanted.backward(chunk, micro) =
          micro + after[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(micro)];
    }
  }
  return add_predictions(plain, wanted, /*shared=*/false);
}

}  // namespace

Kind spectrain() {
  return {.name = "spectrain",
          .what = "1f1b without a flush; weights predicted from momentum",
          .from = "Chen et al. 2018, 1809.02839",
          .steady = true,
          .asynchronous = true,
          .build = build_spectrain,
          .refuses = needs_one_chunk,
          .bubble = no_bubble,
          .memory = unflushed_in_flight,
          .weights = [](const Shape&) -> std::optional<double> { return 1; }};
}

}  // namespace trireme::schedule
