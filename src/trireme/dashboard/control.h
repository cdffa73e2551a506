// dashboard/control.h -- what the page can ask of runs and sweeps: the same files and commands that people use.
//
// A run is paused by RUN/stop and saves by RUN/save; a sweep by DIR/wanted. Going on is a command, started so that it
// outlives the page.
// Depends on: watched_run, watched_sweep; observe, experiment.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/dashboard/watched_run.h"
#include "trireme/dashboard/watched_sweep.h"

namespace trireme::dashboard {

struct ControlOptions {
  std::string program;  ///< trireme
  int slots = 1;        ///< that a sweep gets when it goes on
};

/// What was done, for the person who asked. HttpError 409 where the run is not in a state for it, 400 for an unknown
/// action.
std::string act_on(const WatchedRun& run, const std::string& action, const ControlOptions& options);
std::string act_on(const WatchedSweep& sweep, const std::string& action, const ControlOptions& options);

/// A note for people, in RUN/note.txt; an empty one takes it away. HttpError 400 where it is too long.
void write_note(const WatchedRun& run, const std::string& note);

/// Starts a command that nobody waits for, in a session of its own; what it prints is appended to `log`. IoError.
void start_detached(const std::vector<std::string>& words, const std::filesystem::path& log,
                    const std::filesystem::path& directory);

}  // namespace trireme::dashboard
