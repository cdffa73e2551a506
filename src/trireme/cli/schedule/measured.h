// cli/schedule/measured.h -- a pipeline's last steps, from the file that a run leaves: measured above replayed.
#pragma once

#include <string>

namespace trireme::cli {

/// An SVG: the last walk in the file, above the replay with medians of those before it (of itself, where it is the only
/// one). `path` may also be a run's folder. IoError, ConfigError.
std::string draw_measured(const std::string& path);

}  // namespace trireme::cli
