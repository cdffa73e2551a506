// observe/stop_file.h -- a run is asked to save and stop by a file in its directory, RUN/stop: for supervisors, and for
// people whose launcher does not pass signals on.
//
// Depends on: std.
#pragma once

#include <filesystem>

namespace trireme::observe {

/// Never throws: who cannot ask this way sends a signal.
void ask_to_stop(const std::filesystem::path& run) noexcept;
bool asked_to_stop(const std::filesystem::path& run) noexcept;
void take_back_stop(const std::filesystem::path& run) noexcept;

}  // namespace trireme::observe
