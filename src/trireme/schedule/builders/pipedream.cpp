// PipeDream (Harlap et al. 2018, 1806.03377; Narayanan et al. 2019): 1F1B that never flushes. Every micro is a batch of
// its own, with its own update, unless gradients of several add up; a backward computes with the weights that its
// forward met.
#include "trireme/schedule/builders.h"
#include "trireme/schedule/versions.h"

namespace trireme::schedule {

namespace {

Schedule build_stashing(const Shape& shape) {
  const Schedule plain = unflushed("pipedream", shape, micros_of_update(shape), WeightChoice::kStash);
  const VersionUses present = present_versions(plain);
  VersionUses wanted = present;
  for (int chunk = 0; chunk < plain.chunks(); ++chunk) {
    for (int micro = 0; micro < plain.micros; ++micro) wanted.backward(chunk, micro) = present.forward(chunk, micro);
  }
  return add_stashes(plain, wanted);
}

Schedule build_vertical_sync(const Shape& shape) {
  const Schedule plain = unflushed("pipedream-vsync", shape, micros_of_update(shape), WeightChoice::kVerticalSync);
  const VersionUses present = present_versions(plain);
  VersionUses wanted = present;
  // A micro carries the number of the version that it met first through all ranks.
  for (int chunk = 0; chunk < plain.chunks(); ++chunk) {
    for (int micro = 0; micro < plain.micros; ++micro)
      wanted.forward(chunk, micro) = wanted.backward(chunk, micro) = present.forward(0, micro);
  }
  return add_stashes(plain, wanted);
}

}  // namespace

Kind pipedream() {
  return {.name = "pipedream",
          .what = "1f1b without a flush; backward with the weights of its forward",
          .from = "Harlap et al. 2018, 1806.03377; Narayanan et al. 2019",
          .steady = true,
          .asynchronous = true,
          .build = build_stashing,
          .refuses = needs_one_chunk,
          .bubble = no_bubble,
          .memory = unflushed_in_flight,
          .weights = unflushed_in_flight};
}

Kind pipedream_vsync() {
  return {.name = "pipedream-vsync",
          .what = "the same; all ranks with the version a micro met first",
          .from = "Harlap et al. 2018, 1806.03377, section 3.3",
          .steady = true,
          .asynchronous = true,
          .build = build_vertical_sync,
          .refuses = needs_one_chunk,
          .bubble = no_bubble,
          .memory = unflushed_in_flight};
}

}  // namespace trireme::schedule
