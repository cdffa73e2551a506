// train/interrupt.h -- Ctrl-C and SIGTERM as a request to stop at the end of a step; a second one ends the process.
//
// Depends on: std.
#pragma once

namespace trireme::train {

/// While it lives, SIGINT and SIGTERM are counted instead of ending the process; the second ends it with status 130.
/// Ranks that are threads of one process each hold one.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static bool requested() noexcept;
};

}  // namespace trireme::train
