// tests/comm/thread_ranks.h -- thread ranks as tests want them: no files, a deadline that a stuck test can afford.
#pragma once

#include <chrono>

#include "tests/comm/collective_checks.h"
#include "trireme/comm/rank.h"

namespace trireme::comm {

inline RanksOptions test_options(std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
  RanksOptions options;
  options.comm.flight_directory = "";
  options.comm.deadline = deadline;
  return options;
}

/// Segments are small, so that buffers of a moderate size are cut.
inline Runner on_threads(int ranks_per_node = 0, std::size_t segment_bytes = 16 << 10) {
  RanksOptions options = test_options();
  options.comm.segment_bytes = segment_bytes;
  options.ranks_per_node = ranks_per_node;
  return [options](int ranks, const std::function<void(Rank&)>& body) { run_ranks(ranks, body, options); };
}

}  // namespace trireme::comm
