// checkpoint/run_folder.h -- where things are in a run's directory, and whether it may be used.
//
//   RUN/recipe.toml        the effective recipe, every key       RUN/metrics.jsonl, events.jsonl, hashes.jsonl
//   RUN/tokenizer.json     what its tokens mean                  RUN/checkpoints/step-00000020/
//   RUN/log.txt            what was told                         RUN/tensorboard/
//   RUN/published/         config.json and texts of the model that model.init_from named, for its export
//   RUN/comm-costs.toml    what algorithms of collectives were chosen by, and are when the run goes on
//
// Depends on: base, formats, spec.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/formats/checkpoint_folder.h"
#include "trireme/spec/recipe.h"

namespace trireme::checkpoint {

struct RunFolder {
  std::filesystem::path path;

  std::filesystem::path recipe() const { return path / formats::kRecipeFile; }
  std::filesystem::path checkpoints() const { return path / "checkpoints"; }
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  std::filesystem::path log() const { return path / "log.txt"; }
  std::filesystem::path tokenizer() const { return path / "tokenizer.json"; }
  std::filesystem::path gpu_choices() const { return path / "gpu-choices.json"; }
  /// Configuration and texts of the published model that the run began from.
  std::filesystem::path published() const { return path / "published"; }
  std::filesystem::path costs() const { return path / "comm-costs.toml"; }
  bool holds_a_run() const { return std::filesystem::exists(recipe()) || std::filesystem::exists(metrics()); }
};

/// While it lives, nobody else trains in the directory. The kernel lets go of it when the process ends, however it
/// ends.
class RunLock {
 public:
  /// Waits a while for a process that is ending. IoError when the directory is still in use then.
  explicit RunLock(const RunFolder& folder, std::chrono::milliseconds wait = std::chrono::seconds(10));
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// For a new run. ConfigError when a run is there already.
void check_no_run(const RunFolder& folder);

/// The directory of a run, made if it is not there. What was made goes again, unless keep() was called: a run that is
/// refused leaves nothing behind.
class MadeRunFolder {
 public:
  /// IoError when it cannot be made.
  explicit MadeRunFolder(const RunFolder& folder);
  ~MadeRunFolder();
  MadeRunFolder(const MadeRunFolder&) = delete;
  MadeRunFolder& operator=(const MadeRunFolder&) = delete;

  void keep() { made_.clear(); }

 private:
  std::vector<std::filesystem::path> made_;  // the innermost first
};

/// Moves all that a run has written, but for its lock, into RUN/set-aside-1 (or the next number that is free) and gives
/// that folder: a run that begins anew there removes and overwrites nothing.
std::filesystem::path set_run_aside(const RunFolder& folder);

/// Lines of the run's recipe that are not so in `recipe`: "train.steps = 200 (was 100)".
std::vector<std::string> recipe_changes(const RunFolder& folder, const spec::Recipe& recipe);

/// The recipe that a run or one of its checkpoints holds. ConfigError when `path` is neither.
spec::Recipe read_run_recipe(const std::filesystem::path& path);

/// The newest whole checkpoint of a run, or `path` itself when it is one. ConfigError when there is none; damaged ones
/// are warned of.
formats::CheckpointFolder open_checkpoint(const std::filesystem::path& path);

/// Which checkpoint all ranks go on from: the newest that is whole to the last byte. Its step, the same on every rank;
/// -1: there is none. Each rank reads its share of the blocks, so that a large
/// checkpoint is checked as fast as the ranks can read together. Those that are not whole are told, on
/// every rank alike.
std::int64_t newest_whole(const std::filesystem::path& folder, comm::Group& group,
                          std::vector<formats::DamagedCheckpoint>& damaged, std::int64_t at_most = -1);

}  // namespace trireme::checkpoint
