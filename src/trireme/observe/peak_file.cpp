#include "trireme/observe/peak_file.h"

#include <fmt/chrono.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"
#include "trireme/base/wall_clock.h"
#include "trireme/observe/json_values.h"
#include "trireme/observe/machine.h"

namespace trireme::observe {
namespace {

constexpr std::size_t kKept = 5;  // measurements of one kind: a machine that became slower is believed after so many

Peak peak_from(const Json& entry) {
  if (entry.is_number()) return {.flops = entry.get<double>(), .how = "an older trireme doctor", .when = {}};
  return {.flops = entry.at("flops").get<double>(),
          .how = entry.at("how").get<std::string>(),
          .when = entry.at("when").get<std::string>()};
}

Json to_json(const Peak& peak) { return {{"flops", peak.flops}, {"when", peak.when}, {"how", peak.how}}; }

/// The measurements of one kind. Files of older versions hold a bare number for them.
std::vector<Peak> peaks_from(const Json& entries) {
  if (!entries.is_array()) return {peak_from(entries)};
  std::vector<Peak> peaks;
  for (const Json& entry : entries) peaks.push_back(peak_from(entry));
  return peaks;
}

/// What is measured on this processor: {"bf16": {"2": [{"flops": 1.5e11, "when": ..., "how": ...}]}}; an empty object
/// when there is nothing.
Json read_peaks(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Json::object();
  try {
    const Json file = Json::parse(read_text_file(path, 1U << 20));
    if (file.at("cpu") != cpu_model()) return Json::object();
    const Json& peaks = file.at("flops");
    for (const auto& [precision, by_threads] : peaks.items()) {
      for (const auto& [threads, entries] : by_threads.items()) peaks_from(entries);
    }
    return peaks;
  } catch (const Json::exception&) {
    log_warn("{} is not as trireme doctor writes it; measure again with trireme doctor", path.string());
  } catch (const IoError& error) {
    log_warn("{}", error.message());
  }
  return Json::object();
}

std::vector<Peak> peaks_of(const Json& peaks, std::string_view precision, int threads) {
  const auto by_threads = peaks.find(precision);
  if (by_threads == peaks.end()) return {};
  const auto entries = by_threads->find(std::to_string(threads));
  return entries == by_threads->end() ? std::vector<Peak>{} : peaks_from(*entries);
}

}  // namespace

std::filesystem::path peak_path() { return cache_folder() / "peak.json"; }

std::optional<Peak> find_peak(std::string_view precision, int threads, const std::filesystem::path& path) {
  const std::vector<Peak> peaks = peaks_of(read_peaks(path), precision, threads);
  const auto best = std::ranges::max_element(peaks, {}, &Peak::flops);
  return best == peaks.end() ? std::nullopt : std::optional(*best);
}

void keep_peak(std::string_view precision, int threads, double flops, std::string_view how,
               const std::filesystem::path& path) {
  TRIREME_CHECK(std::isfinite(flops) && flops > 0, "a peak of {} FLOP/s", flops);
  Json all = read_peaks(path);
  std::vector<Peak> peaks = peaks_of(all, precision, threads);
  const auto now = static_cast<std::time_t>(wall_seconds());
  peaks.push_back({.flops = flops, .how = std::string(how), .when = fmt::format("{:%F %T} UTC", fmt::gmtime(now))});
  if (peaks.size() > kKept) peaks.erase(peaks.begin());
  Json& entries = all[std::string(precision)][std::to_string(threads)] = Json::array();
  for (const Peak& peak : peaks) entries.push_back(to_json(peak));
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) throw IoError(fmt::format("{}: cannot be created: {}", path.parent_path().string(), error.message()));
  write_text_file(path, Json{{"cpu", cpu_model()}, {"flops", std::move(all)}}.dump(2) + "\n");
}

}  // namespace trireme::observe
