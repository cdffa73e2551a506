#include "trireme/cli/schedule/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "trireme/base/mapped_file.h"
#include "trireme/base/text.h"
#include "trireme/schedule/timeline.h"

namespace trireme::cli {

std::string draw_measured(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "pipeline.json" : fs::path(path);
  const schedule::MeasuredTable measured = schedule::read_measured(read_text_file(file, std::uint64_t{1} << 30));
  schedule::Calibration calibration(measured.schedule);
  const std::size_t before = measured.executions.size() - 1;
  for (std::size_t i = 0; i < std::max<std::size_t>(before, 1); ++i) calibration.add(measured.executions[i]);
  schedule::ReplayOptions options = calibration.options();
  options.keep_spans = true;
  const schedule::Timing predicted = schedule::replay(measured.schedule, options);
  return schedule::to_svg(
      schedule::Comparison{measured.schedule, measured.executions.back(), predicted,
                           before > 0 ? fmt::format("replayed with medians of the {} before", counted(before, "step"))
                                      : std::string("replayed with its own times")});
}

}  // namespace trireme::cli
