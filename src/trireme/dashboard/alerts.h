// dashboard/alerts.h -- what somebody should know of a run, from its events and from its silence. Pure functions.
//
// Depends on: observe (records).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/observe/records.h"

namespace trireme::dashboard {

enum class Severity : std::uint8_t { kInfo, kWarning, kCritical };
std::string_view name(Severity severity);

struct Alert {
  double time = 0;  ///< seconds since 1970
  Severity severity = Severity::kInfo;
  std::string kind;  ///< "straggler", "diverged", "hanging", "failed", "finished"
  std::string text;
  std::optional<std::int64_t> step = {};
  bool operator==(const Alert&) const = default;
};

/// Nothing for events that are as they should be.
std::optional<Alert> alert_of(const observe::EventRecord& event);

/// Whether ranks are alive, by what they left on the disk.
struct Verdict {
  enum class State : std::uint8_t { kIdle, kStarting, kAlive, kHanging };
  State state = State::kIdle;
  std::string text;
  std::vector<int> behind = {};  ///< ranks that wrote fewer steps than the others
};
struct Pulse {
  bool running = false;                  ///< a process holds the run's lock
  std::optional<double> silence = {};    ///< seconds since the last heartbeat; none: there was none in this life
  double step_seconds = 0;               ///< of a usual step; 0: not known
  std::vector<std::int64_t> steps = {};  ///< that each rank wrote last
};
/// A run counts as hanging after ten usual steps without a heartbeat, and not before 30 seconds.
Verdict verdict_of(const Pulse& pulse);

/// Ranks that compute `factor` times as long as the median rank, with how many times.
std::vector<std::pair<int, double>> stragglers(const std::vector<double>& compute_seconds, double factor = 1.3);

}  // namespace trireme::dashboard
