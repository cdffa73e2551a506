// train/run/run.h -- a run from its recipe to its last step: directory, metrics, validation, checkpoints, interruption.
//
// Depends on: all rooms but serve and cli.
#pragma once

#include "trireme/train/commands.h"

namespace trireme::train {

/// Called by every rank of the run; rank 0 writes the files.
RunResult run(const RunRequest& request, comm::Rank& rank);

}  // namespace trireme::train
