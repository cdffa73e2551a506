// train/servers/downpour_driver.h -- train.mode = "downpour": ranks of a run as replicas around parameter servers.
//
// From one rest to the next, ranks take parts of steps as they are free, by a counter in the control plane; no rank
// waits for another. At a rest all pushes are applied and everybody fetches the same weights (and moments), which is
// where they are saved, hashed, evaluated and gone on from. Rests fall where the recipe looks: evaluations,
// checkpoints and hashes.
// Depends on: downpour_twin.h, train/engine.
#pragma once

#include <vector>

#include "trireme/train/engine/step_driver.h"
#include "trireme/train/servers/downpour_worker.h"

namespace trireme::train {

/// What a rank has done since the run began, where Trainer::keep_journal() asked for it.
struct DownpourJournal {
  std::vector<double> first_weights;
  std::vector<JournalEntry> entries;
};
/// Null: the driver is another.
const DownpourJournal* downpour_journal(const StepDriver& driver);

/// On all ranks together: everybody's journal on every rank, for replay_downpour().
std::vector<std::vector<JournalEntry>> gather_journals(const std::vector<JournalEntry>& mine, comm::Group& world);

}  // namespace trireme::train
