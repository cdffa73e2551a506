// cli/sweep_run.h -- running experiments from the command line: the options of slots, and a table that lives.
//
// Depends on: command.h, experiment.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/cli/commands.h"
#include "trireme/experiment/overview.h"

namespace trireme::cli {

struct SlotFlags {
  std::optional<int> slots;
  int per_trial = 1, restarts = 2;
  bool slurm = false;
  std::string mpi = "pmix", store;

  /// All but --slots-per-trial, which an experiment has from its beginning.
  void add_to(Command& command);
};

/// Until they are done, paused or stopped; says how they ended. The exit code.
int run_experiments(const std::vector<std::filesystem::path>& folders, const SlotFlags& flags, Context& context);

/// "trial 7, loss 2.3456 at step 200: optim.learning_rate=0.003", and where its run is.
std::string best_text(const experiment::Overview& overview);

}  // namespace trireme::cli
