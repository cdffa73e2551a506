// train/run/interrupt.h -- signals as requests to a run: stop and save, or save and go on.
//
//   SIGINT, SIGTERM   stop at the end of the step, with a checkpoint; a second one ends the process
//   SIGUSR1           save at the end of the step and go on (Slurm: --signal=USR1@120); what it did before is done too
//
// Stopping has a deadline: the process ends when it has not been met, and the newest whole checkpoint stays.
// Depends on: std.
#pragma once

#include <chrono>

namespace trireme::train {

/// While it lives, signals are counted instead of ending the process; a second SIGINT or SIGTERM, or the deadline after
/// the first, ends it with status 130. Ranks that are threads of one process each hold one.
class Interrupt {
 public:
  explicit Interrupt(std::chrono::nanoseconds grace);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static bool requested() noexcept;
  /// How often SIGUSR1 has come.
  static int saves_requested() noexcept;
};

}  // namespace trireme::train
