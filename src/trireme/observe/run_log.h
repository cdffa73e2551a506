// observe/run_log.h -- writes a run's directory while the run lives.
//
//   RunLog log("runs/tiny", std::nullopt);
//   log.event("start", {{"model", "gpt"}, {"parameters", 124'439'808}, {"ranks", 4}});
//   log.step(record);                                   // metrics.jsonl and TensorBoard
//   log.event("eval", {{"step", 100}, {"loss", 3.2}});  // events.jsonl and TensorBoard
//
// Files: metrics.jsonl (a line a step), events.jsonl, hashes.jsonl (a line a hashed step), tensorboard/. Each line is
// one write(), so a run that is killed leaves at most one cut line, and `tail -f` shows whole ones. Numbers that are
// NaN and Inf are the texts "nan", "inf", "-inf" (json_values.h). docs/runs.md lists the fields; run_reader.h reads
// them. Used by one thread of one rank.
// Depends on: base, records, tensorboard.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/observe/records.h"
#include "trireme/observe/tensorboard.h"

namespace trireme::observe {

/// Rewrites a file of lines with steps without those after `last_step`, which a resumed run will write again; nothing:
/// only without a last line that was cut short.
void cut_back(const std::filesystem::path& path, std::optional<std::int64_t> last_step);

class RunLog {
 public:
  /// Makes `dir` where it is not there. Without `resume_after_step` the run is new: ConfigError when `dir` already
  /// holds one. With it, the run goes on after that step (0: from its beginning): metrics and hashes of later steps are
  /// cut off, as are lines that a crash left unfinished; events stay, and a "resume" event tells of the cut.
  explicit RunLog(std::filesystem::path dir, std::optional<std::int64_t> resume_after_step);

  const std::filesystem::path& dir() const { return dir_; }

  /// A full disk does not end a run: lines are then kept in memory until there is room, IoError when they are too many.
  void step(const StepRecord& record);
  void hashes(std::int64_t step, std::uint64_t total, std::span<const std::pair<std::string, std::uint64_t>> tensors);
  /// `fields` is an object; the kind and the time are put in front. The numbers of an "eval" go to TensorBoard too, as
  /// "eval/loss".
  void event(std::string_view kind, Json fields);

 private:
  std::filesystem::path dir_;
  AppendFile metrics_, events_, hashes_;
  TensorBoardFile tensorboard_;
};

}  // namespace trireme::observe
