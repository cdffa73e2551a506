// schedule/draw.h -- a replayed schedule as a picture: one lane a rank, time to the right.
//
// Depends on: replay.
#pragma once

#include <cstddef>
#include <string>

#include "trireme/schedule/replay.h"
#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

/// What is drawn: a schedule and its timing with spans. Versions of weights are shown where a pass may meet another
/// one than the present.
struct Drawing {
  const Schedule& schedule;
  const Timing& timing;
  std::string caption = {};  // under the name
};

/// A page of its own in SVG: passes as boxes with micro numbers, idle time hatched, updates as lines.
std::string to_svg(const Drawing& drawing);

/// Letters and numbers for a terminal of that width; `colors` uses the terminal's own.
std::string to_terminal(const Drawing& drawing, std::size_t width, bool colors);

/// Chrome's trace format, which Perfetto reads: a thread for each rank, arrows for messages, micros held as a counter.
/// One unit of time becomes a millisecond.
std::string to_chrome_trace(const Drawing& drawing);

}  // namespace trireme::schedule
