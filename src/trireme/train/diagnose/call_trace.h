// train/diagnose/call_trace.h -- what a rank's communication did, as spans beside those of its layers.
//
// The flight recorder has every call with its beginning and end; after each step those that are new are told to the
// sink. A call takes the first lane that is free while it runs, so calls that overlap lie below each other.
// Depends on: base, comm.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "trireme/base/events.h"
#include "trireme/comm/recorder.h"

namespace trireme::train {

class CallTrace {
 public:
  /// Both are borrowed. Calls that have begun before are left out.
  CallTrace(const comm::Recorder& recorder, EventSink& sink, int rank);
  /// Those that have ended since the last time.
  void tell();

 private:
  int lane_for(std::int64_t begin_ns, std::int64_t end_ns);

  const comm::Recorder& recorder_;
  EventSink& sink_;
  int rank_;
  std::uint64_t next_ = 0;               // smaller numbers are told, but for those that run
  std::set<std::uint64_t> running_;      // of them, when they were last looked at
  std::vector<std::int64_t> lane_ends_;  // of the last call of each
  bool warned_ = false;
};

}  // namespace trireme::train
