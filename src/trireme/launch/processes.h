// launch/processes.h -- starts the processes of a job and stays until all have ended.
//
// Their lines come out whole, with a prefix. The first that fails ends the others, and its name is told: ranks of a job
// are of no use alone. SIGINT and SIGTERM are passed on, so that a run saves; a second one ends it at once.
// Depends on: launcher, base (child_process, log).
#pragma once

#include <chrono>
#include <vector>

#include "trireme/launch/launcher.h"

namespace trireme::launch {

struct ProcessOptions {
  std::chrono::milliseconds grace{5'000};  ///< for ranks that are told to end, before their input is closed
  std::chrono::milliseconds last{15'000};  ///< and then, before what reaches them is killed
  int output = 1, errors = 2;              ///< descriptors
};

/// 0 when all ended with 0; 130 when they were interrupted and have saved; 2 when the first that failed ended with 2 (a
/// wrong recipe); else 1.
int run_processes(const std::vector<Process>& processes, const ProcessOptions& options = {});

}  // namespace trireme::launch
