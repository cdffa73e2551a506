// agile/spot_drill.h -- Proteus' promise on real processes: all spot machines are killed at once, again and again.
//
// Machines are processes over UCX, the controller is this one. Every few clocks all spot machines get SIGKILL together,
// with the servers and what they had streamed to nobody; some clocks later as many new ones come. At the end every
// clock was committed once, and the weights are those of one machine, bit for bit.
// Depends on: base (child processes), comm (control plane, UCX mailboxes), agile_run.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/agile/agile_run.h"

namespace trireme::agile {

struct SpotDrillOptions {
  int reliable = 2, spot = 4;
  int evictions = 3;  ///< of all spot machines at once
  int every = 4;      ///< clocks between an eviction and the next machines, and between those and the next eviction
  int weights = 2'000, shards = 4, partitions = 12;
  std::uint64_t seed = 0;
  /// The command of a machine: these words, its number, its rank and the port of the control plane.
  std::vector<std::string> machine_command;
  std::function<void(const std::string& line)> tell;  ///< of each eviction
};

struct SpotDrillResult {
  AgileResult run;
  int clocks = 0, killed = 0;
  bool same_bits = false;        ///< as one machine
  bool each_clock_once = false;  ///< committed, in order
  double seconds = 0;
};

/// Throws CommError when it does not get through.
SpotDrillResult run_spot_drill(const SpotDrillOptions& options);
/// A machine's process: until the job is over, or it is killed.
/// `rank`: in the control plane, where each process has its own.
void run_spot_machine(const SpotDrillOptions& options, int machine, int rank, int port);

}  // namespace trireme::agile
