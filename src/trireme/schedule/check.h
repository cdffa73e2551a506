// schedule/check.h -- is this table what it says it is, and can it run?
//
// Depends on: schedule, versions.
#pragma once

#include <string>
#include <vector>

#include "trireme/schedule/schedule.h"
#include "trireme/schedule/versions.h"

namespace trireme::schedule {

struct Report {
  /// Every way in which the table is wrong, in words that name rank, instruction and micro. Where this is not empty,
  /// the rest says nothing.
  std::vector<std::string> faults;
  /// Messages that a channel must be able to hold while no receive is posted for them, so that no rank waits for ever;
  /// 0: every send may wait until its receive is posted. Everything one rank sends to another is one channel, whose
  /// messages keep their order, as on a device's stream.
  int slots = 0;
  std::vector<int> peak_in_flight;  // by rank: micros between forward and end of backward, over all chunks
  std::vector<int> peak_versions;   // by rank: weight versions held of any one chunk, the present one among them
  std::vector<int> peak_weights;    // by rank: copies of weights over all chunks, predictions among them
  VersionUses uses;
  /// The most updates that the weights of any pass lack, compared with a run that does one step after the other.
  int delay = 0;
  bool fine() const { return faults.empty(); }
};

/// Completeness, order, placement; reductions and updates where there are any; weight versions by the table's law;
/// transfers, as add_transfers() adds them where there are none.
Report check(const Schedule& schedule);

/// Throws ConfigError with all faults.
void require_fine(const Schedule& schedule);

}  // namespace trireme::schedule
