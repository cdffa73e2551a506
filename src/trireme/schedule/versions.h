// schedule/versions.h -- which weights each pass computes with, and the instructions that make it so.
//
// Only asynchronous kinds need them: there a rank updates its weights while micros are in flight.
// Depends on: schedule.
#pragma once

#include <vector>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

/// By pass, the version of the weights: how many updates they have seen. -1 where there is no such pass.
struct VersionUses {
  VersionUses() = default;
  VersionUses(int chunks, int micros);

  int& forward(int chunk, int micro) { return forward_[cell(chunk, micro)]; }
  int& backward(int chunk, int micro) { return backward_[cell(chunk, micro)]; }
  int forward(int chunk, int micro) const { return forward_[cell(chunk, micro)]; }
  int backward(int chunk, int micro) const { return backward_[cell(chunk, micro)]; }

 private:
  std::size_t cell(int chunk, int micro) const {
    return static_cast<std::size_t>(chunk) * micros_ + static_cast<std::size_t>(micro);
  }
  std::size_t micros_ = 0;
  std::vector<int> forward_ = {}, backward_ = {};
};

/// The versions that are present when the passes run.
VersionUses present_versions(const Schedule& schedule);

/// The most steps by which a forward is ahead of its rank's updates. Where a rank waits, in a step, for what all others
/// know when they have updated so many steps before, no rank waits for ever, and none for the pipeline to empty: by
/// then they lack nothing that it has not done.
int steps_ahead(const Schedule& schedule);

/// With stashes, loads and drops so that each pass computes with the version wanted for it, and no version is kept
/// longer than it is needed. No version may be wanted before it is there.
Schedule add_stashes(const Schedule& schedule, const VersionUses& wanted);

/// With predictions so that each pass computes with the version wanted for it. `shared`: the micros of a step share
/// the prediction that the first of them makes for that direction.
Schedule add_predictions(const Schedule& schedule, const VersionUses& wanted, bool shared);

/// How many micros come back through `chunk` between the last one of the step of `micro` and the moment when that one
/// has come back through chunk 0 too, when forward and backward take equally long: [chunk][micro]. What the papers that
/// predict weights count. For tables of whole backwards, one chunk a rank.
std::vector<std::vector<int>> backwards_until_round_trip(const Schedule& schedule);

}  // namespace trireme::schedule
