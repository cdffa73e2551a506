// observe/timeline.h -- what happened to a run on all its ranks and to its supervisor, in one order:
// RUN/timeline.jsonl.
//
// Clocks of machines differ, so every line carries a Lamport clock (Lamport 1978): a teller counts on by one for each
// event, and takes over a larger count whenever it hears of one. Ranks hear of each other after every step, a
// supervisor and its run through the file. Sorted by that clock, no effect stands before its cause.
// Depends on: base, json_values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/observe/json_values.h"

namespace trireme::observe {

/// One teller's pen. Lines are whole and may come from many processes; a disk that takes none is no reason to stop.
class Timeline {
 public:
  /// `who`: "rank 3", "supervisor". The clock goes on after the file's last.
  Timeline(std::filesystem::path file, std::string who);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void tell(std::string_view event) noexcept;
  void tell(std::string_view event, const Json& fields) noexcept;
  /// Somebody else has counted this far.
  void hear(std::int64_t clock) { clock_ = clock > clock_ ? clock : clock_; }
  std::int64_t clock() const { return clock_; }

 private:
  std::string who_;
  int descriptor_ = -1;
  std::int64_t clock_ = 0;
};

struct TimelineEvent {
  std::int64_t clock = 0;
  std::string who, event;
  double time = 0;  ///< by that machine's clock, seconds since 1970
};
/// By clock, then by who. Cut lines are left out; none when there is no file.
std::vector<TimelineEvent> read_timeline(const std::filesystem::path& file);

}  // namespace trireme::observe
