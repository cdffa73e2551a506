// 1F1B that never flushes and does nothing about it: a backward may meet other weights than its forward. For
// comparison.
#include "trireme/schedule/builders.h"

namespace trireme::schedule {

Kind stale() {
  return {
      .name = "stale",
      .what = "1f1b without a flush; every pass with the weights it finds",
      .from = "what the asynchronous kinds are compared with",
      .steady = true,
      .asynchronous = true,
      .build =
          [](const Shape& shape) { return unflushed("stale", shape, micros_of_update(shape), WeightChoice::kStale); },
      .refuses = needs_one_chunk,
      .bubble = no_bubble,
      .memory = unflushed_in_flight,
      .weights = [](const Shape&) -> std::optional<double> { return 1; }};
}

}  // namespace trireme::schedule
