// observe/supervisor.h -- keeps a run going: starts it, watches it, starts it again.
//
// It knows a command and the run's directory. A life of the run ends by itself or, when its heartbeat stands still for
// too long, by the supervisor's hand; every life but the first begins from the newest whole checkpoint, which is the
// run's own doing. Lives that bring no new checkpoint count against the limit; one that does makes it whole again.
// Who asks the supervisor to stop asks the run, by a file RUN/stop: launchers pass signals on as they like.
// Depends on: base, heartbeat, timeline.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme::observe {

struct SuperviseOptions {
  std::vector<std::string> command;            ///< "{ranks}" stands for the number of ranks
  std::filesystem::path run;                   ///< the run's directory
  int restarts = 10;                           ///< so many lives in a row without a new checkpoint, beside the first
  std::vector<int> ranks;                      ///< to be tried in this order, most first; empty: the command says
  int lives_before_fewer = 2;                  ///< without progress, until the next of `ranks` is tried
  std::chrono::milliseconds hang{600'000};     ///< without a heartbeat, after the first one
  std::chrono::milliseconds start{1'800'000};  ///< until the first one
  std::chrono::milliseconds grace{70'000};  ///< for a run that is asked to stop, and then between SIGTERM and SIGKILL
  std::chrono::milliseconds first_wait{1'000}, longest_wait{300'000};  ///< back-off: doubled from life to life
  std::chrono::milliseconds look{200};                                 ///< how often it looks
};

struct Supervised {
  int status = 0;  ///< the command's last exit status; 128 + signal when one ended it
  int lives = 0, hangs = 0;
  bool finished = false;  ///< the command ended with 0
  std::string why;        ///< when not
};

/// Until the run has finished, is interrupted (SIGINT or SIGTERM to the supervisor, passed on), or the limit is
/// reached.
Supervised supervise(const SuperviseOptions& options);

/// How long to wait before the next life after so many without progress.
std::chrono::milliseconds wait_before(int lives_without_progress, const SuperviseOptions& options);
/// The command with its ranks filled in.
std::vector<std::string> filled_in(const std::vector<std::string>& command, int ranks);

}  // namespace trireme::observe
