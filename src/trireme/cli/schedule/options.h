// cli/schedule/options.h -- what the commands of `trireme schedule` share: which schedule, for which shape and times.
//
// Depends on: commands, schedule.
#pragma once

#include <string>
#include <vector>

#include "trireme/cli/commands.h"
#include "trireme/schedule/builders.h"

namespace trireme::cli {

class ScheduleOptions {
 public:
  enum class Kind { kOne, kNone };

  /// Adds the options; `kNone` leaves out the kind and what belongs to one kind only.
  void add_to(Command& command, Kind kind);

  const std::string& kind() const { return kind_; }
  /// With the kind's own number of chunks where none was asked for.
  schedule::Shape shape(const schedule::Kind& kind) const;
  /// Of a rank's share of the model.
  schedule::Times times() const;
  /// All but the transfers. A file brings its own shape.
  schedule::Schedule build() const;

 private:
  std::string kind_, times_ = "f=1,b=1,w=1";
  int mixtures_ = 0;
  int stages_ = 4, micros_ = 8, chunks_ = 0, steps_ = 1, most_in_flight_ = 0, virtual_workers_ = 1;
  bool recompute_ = false;
};

/// Writes a result where the user wants it: a file, or the output of the program when there is no name.
void write_result(const std::string& text, const std::string& path, Context& context);

void add_schedule_list(Command& schedule, Context& context);
void add_schedule_show(Command& schedule, Context& context);
void add_schedule_draw(Command& schedule, Context& context);
void add_schedule_compare(Command& schedule, Context& context);
void add_schedule_check(Command& schedule, Context& context);

}  // namespace trireme::cli
