#include "trireme/observe/peak_file.h"

#include <cmath>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/mapped_file.h"
#include "trireme/base/new_file.h"
#include "trireme/observe/json_values.h"
#include "trireme/observe/machine.h"

namespace trireme::observe {
namespace {

/// What is measured on this processor: {"bf16": {"2": 1.5e11}}; an empty object when there is nothing.
Json read_peaks(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Json::object();
  try {
    const Json file = Json::parse(read_text_file(path, 1U << 20));
    if (file.at("cpu") != cpu_model()) return Json::object();
    const Json& peaks = file.at("flops");
    for (const auto& [precision, by_threads] : peaks.items()) {
      for (const auto& [threads, flops] : by_threads.items()) flops.get<double>();
    }
    return peaks;
  } catch (const Json::exception&) {
    log_warn("{} is not as trireme doctor writes it; measure again with trireme doctor", path.string());
  } catch (const IoError& error) {
    log_warn("{}", error.message());
  }
  return Json::object();
}

}  // namespace

std::filesystem::path peak_path() { return cache_folder() / "peak.json"; }

std::optional<double> peak_flops(std::string_view precision, int threads, const std::filesystem::path& path) {
  const Json peaks = read_peaks(path);
  const auto by_threads = peaks.find(precision);
  if (by_threads == peaks.end()) return std::nullopt;
  const auto flops = by_threads->find(std::to_string(threads));
  if (flops == by_threads->end()) return std::nullopt;
  return flops->get<double>();
}

void keep_peak_flops(std::string_view precision, int threads, double flops, const std::filesystem::path& path) {
  TRIREME_CHECK(std::isfinite(flops) && flops > 0, "a peak of {} FLOP/s", flops);
  Json peaks = read_peaks(path);
  peaks[std::string(precision)][std::to_string(threads)] = flops;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) throw IoError(fmt::format("{}: cannot be created: {}", path.parent_path().string(), error.message()));
  write_text_file(path, Json{{"cpu", cpu_model()}, {"flops", std::move(peaks)}}.dump(2) + "\n");
}

}  // namespace trireme::observe
