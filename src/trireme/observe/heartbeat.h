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

}  // namespace trireme::observe
