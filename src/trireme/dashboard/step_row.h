// dashboard/step_row.h -- the scalars of a line of metrics.jsonl, read quickly.
//
// A page that opens a hundred long runs reads a million lines. The fields stand in the order in which observe/records.h
// writes them, so they are scanned without building a JSON value; a line of another form is parsed as JSON.
// Depends on: observe (records).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::dashboard {

struct StepRow {
  std::int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0, tokens = 0, tokens_per_s = 0;
  double mfu = 0;  // NaN: not known
  double memory = 0, seconds = 0, compute = 0, data = 0, comm = 0, overhead = 0;
  std::vector<std::pair<std::string, double>> losses;  // terms by name, where there are several
  /// The most loaded expert over the mean, in the layer where that is largest; NaN where the line tells no loads.
  double imbalance = std::numeric_limits<double>::quiet_NaN();
  double noise_scale = std::numeric_limits<double>::quiet_NaN();  // in tokens; NaN where it is not measured
  std::vector<std::pair<std::string, double>> noise_scales;       // of each layer
};

/// The order in which a row is sent: as one array of numbers.
constexpr std::array<std::string_view, 14> kRowFields = {"step",         "loss", "grad_norm", "lr",         "tokens",
                                                         "tokens_per_s", "mfu",  "memory",    "seconds",    "compute",
                                                         "data",         "comm", "overhead",  "noise_scale"};
std::array<double, 14> numbers_of(const StepRow& row);

/// Step and loss alone, which stand first; nothing for a line that is none of ours.
std::optional<std::pair<std::int64_t, double>> scan_loss(std::string_view line);
/// Everything; nothing for a line that is none of ours.
std::optional<StepRow> scan_row(std::string_view line);

}  // namespace trireme::dashboard
