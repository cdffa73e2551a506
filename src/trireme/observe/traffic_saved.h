// observe/traffic_saved.h -- what gradient compression saved in a run, from what its ranks measured.
//
// Depends on: rank_log.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/observe/records.h"

namespace trireme::observe {

/// Of one rank, over the whole run.
struct CompressionFigures {
  double sent_bytes = 0, saved_bytes = 0;
  double seconds = 0;         ///< in compressing, exchanging and decompressing
  double kernel_seconds = 0;  ///< of them, in compressing and decompressing
  double comm_seconds = 0;    ///< that steps waited for messages
  double rounds = 0, relative_error = 0;
  // Where the network is known, as an emulated one is: what dense steps of the same computing take by their bytes, less
  // what compressed ones take by the planner, and less what these took.
  std::optional<double> predicted_gain_s, measured_gain_s;
  std::vector<std::pair<std::string, double>> errors = {};  ///< of the last round, by parameter

  /// As measured; on a network that is not known what the saved bytes would have taken at the rate of those that were
  /// sent, which counts latency and kernels as if they grew with bytes.
  std::optional<double> gain_s() const;
};

/// Nothing where the rank did not compress.
std::optional<CompressionFigures> compression_figures(std::span<const RankRecord> steps);
/// Of rank 0 of the run in this folder.
std::optional<CompressionFigures> compression_of(const std::filesystem::path& run);
/// An HTML table: bytes, seconds, and the error of each layer, the mean of its parameters'.
std::string compression_table(const CompressionFigures& figures);

}  // namespace trireme::observe
