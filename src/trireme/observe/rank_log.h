// observe/rank_log.h -- what each rank measures of its steps, in a file of its own: RUN/ranks/00003.jsonl.
//
// A sink of metrics (base/events.h). Each rank writes its own file, so nothing is exchanged for it; whoever shows ranks
// side by side (a page, a heat map of step times) reads them all. A line a step:
// {"step":20,"metrics":{"step/seconds":..}}
// Depends on: base, append_file, records.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "trireme/base/events.h"
#include "trireme/observe/append_file.h"
#include "trireme/observe/records.h"

namespace trireme::observe {

class RankLog final : public EventSink {
 public:
  /// With `resume_after_step` lines of later steps are cut off; rank 0 also cuts those of ranks beyond `ranks`, of a
  /// run that had more.
  RankLog(const std::filesystem::path& run, int rank, int ranks, std::optional<std::int64_t> resume_after_step);

  bool wants_spans() const noexcept override { return false; }
  void span(const Span&) noexcept override {}
  /// Kept until the step ends; of metrics of one name in a step the last counts. Those of other ranks are left out.
  void metric(const Metric& metric) noexcept override;
  /// Writes the lines of this step and of those before it. IoError as AppendFile::append_or_keep.
  void end_step(std::int64_t step);

 private:
  int rank_;
  AppendFile file_;
  std::mutex mutex_;
  std::map<std::int64_t, RankRecord> open_;  // by step
};

/// What all ranks of a run wrote, by rank; what is damaged or cut short is left out.
std::map<int, std::vector<RankRecord>> read_ranks(const std::filesystem::path& run);

}  // namespace trireme::observe
