// experiment/overview.h -- an experiment as people look at it: states, trials and the best, from its folder.
//
// The tables of the terminal, the store and what is exported are all made of this one value.
// Depends on: experiment.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/experiment/experiment.h"

namespace trireme::experiment {

enum class TrialState : std::uint8_t {
  kQueued,   ///< asked for, waits for slots
  kRunning,  ///< is being trained
  kPaused,   ///< evaluated at a rung; may go on
  kDone,     ///< trained to the end
  kStopped,  ///< the search has no use for it any more
  kFailed,   ///< crashed more often than allowed
  kInvalid,  ///< its setting cannot be trained
};
std::string_view name(TrialState state);

enum class ExperimentState : std::uint8_t { kRunning, kPaused, kStopped, kDone };
std::string_view name(ExperimentState state);

struct TrialView {
  int trial = 0, draw = 0;
  TrialState state = TrialState::kQueued;
  Setting setting;
  std::int64_t step = 0;                  ///< evaluated last
  std::int64_t until = 0;                 ///< asked for last
  std::map<std::int64_t, double> losses;  ///< by step
  std::filesystem::path run;
};

struct Overview {
  std::filesystem::path folder;
  Experiment experiment;
  ExperimentState state = ExperimentState::kPaused;
  std::vector<TrialView> trials;  ///< by number
  std::optional<Best> best;
  std::vector<std::int64_t> evaluation_steps;
  std::int64_t steps = 0;  ///< trained so far, up to evaluations
};

/// From the folder; `running`: trials that are being trained now, where the caller runs the experiment.
Overview overview_of(const ExperimentFolder& folder, const std::vector<int>* running = nullptr);

/// The best first, at most `rows` trials (0: all), with a line above that says how far the experiment is.
std::string table_text(const Overview& overview, std::size_t rows = 0);
/// A row for each trial: number, state, a column for each parameter and each evaluation.
std::string csv_text(const Overview& overview);

}  // namespace trireme::experiment
