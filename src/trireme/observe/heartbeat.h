// observe/heartbeat.h -- a run says that it lives, in RUN/heartbeat.json, and a supervisor looks.
//
// Depends on: base.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace trireme::observe {

struct Heartbeat {
  std::int64_t beats = 0;   ///< of this life: a supervisor sees them change, whatever the clocks say
  std::int64_t step = 0;    ///< done
  std::int64_t saved = -1;  ///< the newest checkpoint that is there
  std::int64_t pid = 0;
};

/// Never throws: a run does not end for want of a heartbeat.
void write_heartbeat(const std::filesystem::path& run, const Heartbeat& heartbeat) noexcept;
/// Nothing when there is none, or it is being written.
std::optional<Heartbeat> read_heartbeat(const std::filesystem::path& run);

// A run is asked to save and stop by a file in its directory, RUN/stop, and to save and go on by RUN/save: for
// supervisors and the dashboard, and for people whose launcher does not pass signals on.

/// Never throws: who cannot ask this way sends a signal.
void ask_to_stop(const std::filesystem::path& run) noexcept;
bool asked_to_stop(const std::filesystem::path& run) noexcept;
void take_back_stop(const std::filesystem::path& run) noexcept;

/// Never throws, as ask_to_stop.
void ask_to_save(const std::filesystem::path& run) noexcept;
/// Whether somebody asked; the wish is taken back with the answer.
bool take_save_wish(const std::filesystem::path& run) noexcept;

}  // namespace trireme::observe
