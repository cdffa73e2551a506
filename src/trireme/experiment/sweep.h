// experiment/sweep.h -- runs experiments: asks their searches, schedules their trials, watches processes, tells
// results.
//
// One process, one thread, one loop; nothing in it is remembered that is not on the disk. Killed at any moment, it goes
// on from the folders: the searches are replayed, jobs without a result are started again and resume from their
// checkpoints.
// Depends on: experiment, scheduler, store, trial_run.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "trireme/base/queue_meter.h"
#include "trireme/experiment/overview.h"
#include "trireme/experiment/trial_run.h"

namespace trireme::experiment {

struct SweepOptions {
  std::vector<std::filesystem::path> experiments;  ///< folders; they share the slots
  std::vector<int> nodes = {1};                    ///< slots of each node; of one: this machine's
  /// Nodes of a Slurm allocation, on which trials are steps; without any: this machine. `nodes` is then not asked.
  launch::Allocation allocation = {};
  std::string mpi = "pmix";     ///< srun's --mpi of trials on several of them
  std::filesystem::path store;  ///< empty: beside the first experiment
  TrialProgram program;
  std::chrono::milliseconds look{200};  ///< how often it looks
  std::chrono::milliseconds show_every{1000};
  /// Called when something happened, and every `show_every`: for a live table.
  std::function<void(const std::vector<Overview>&)> show = {};
};

struct SweepEnd {
  bool interrupted = false;         ///< by SIGINT or SIGTERM: all trials have saved
  std::vector<Overview> overviews;  ///< of each experiment
  /// By Little's law, of all experiments together: trials that wait for slots, from when their search gave the job; and
  /// trials that have them. Trials that a scheduler took slots from wait again.
  QueueReading waiting = {}, running = {};
};

/// Until every experiment is done, paused or stopped.
SweepEnd run_sweeps(const SweepOptions& options);

}  // namespace trireme::experiment
