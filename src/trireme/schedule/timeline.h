// schedule/timeline.h -- a table as it ran: measured times of its instructions, the replay that they predict, and both
// as a picture.
//
//   Calibration calibration(table);
//   for (const Timeline& measured : calibration_run) calibration.add(measured);
//   const Timing predicted = replay(table, calibration.options());
//   write(to_svg(Comparison{table, next_run, predicted}));
//
// Depends on: replay, draw.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/schedule/draw.h"
#include "trireme/schedule/replay.h"

namespace trireme::schedule {

/// One execution of a table by all of its ranks: by rank, for each position of its list when it began and ended, in
/// seconds from when the first rank began.
struct Timeline {
  std::vector<std::vector<Span>> ranks;
  /// Of the ranks' lists from the first begin to the last end.
  double seconds() const;
  /// As a replay would say it: passes and updates as spans, waits as idle time.
  Timing timing() const;
};

/// Medians over several executions, for each single instruction.
class Calibration {
 public:
  /// `schedule` is complete and borrowed.
  explicit Calibration(const Schedule& schedule);
  /// An execution of that table. ConfigError where it is of another.
  void add(const Timeline& measured);
  /// What replay() needs to predict an execution: every instruction's own time, posting transfers included; of messages
  /// the time from the post of the send to the end of a wait that began before; updates begin together, as they need
  /// the norm over all ranks. Valid as long as this object.
  ReplayOptions options() const;
  /// The same without what communication costs: passes and updates alone. What no runtime could be faster than.
  ReplayOptions ideal() const;

 private:
  double median_of(int rank, const Instruction& instruction) const;
  using Key = std::pair<int, std::string>;  // rank and the instruction as a text
  const Schedule& schedule_;
  std::map<Key, std::vector<double>> own_;    // of instructions
  std::map<Key, std::vector<double>> links_;  // of messages, by the sender and its send
  std::vector<double> all_links_;
};

/// Measured above predicted, on one scale of time.
struct Comparison {
  const Schedule& schedule;
  const Timeline& measured;
  const Timing& predicted;
  std::string caption = {};
};
std::string to_svg(const Comparison& comparison);

/// A file that holds a table and one execution of it.
struct MeasuredTable {
  Schedule schedule;
  std::vector<Timeline> executions;  // the last one is shown, those before it are what is predicted from
};
std::string to_json(const MeasuredTable& measured);
/// Throws ConfigError.
MeasuredTable read_measured(std::string_view text);

}  // namespace trireme::schedule
