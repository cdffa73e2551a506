// observe/run_import.h -- runs that other tools have logged, as run folders that our readers read.
//
// From MLflow: a store of files (mlflow.h writes one), with all its runs. From W&B: a line of JSON a logged step, as
// its client gives it (`for row in run.scan_history()`). Curves are found by the names that trainers commonly give
// them; those that have no place in a run's files are named, not lost in silence. What mlflow.h exported comes back
// with the same numbers.
// Depends on: records, run_log's files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::observe {

struct ImportedRun {
  std::filesystem::path folder;
  std::int64_t steps = 0;             ///< that have a loss
  std::vector<std::string> left_out;  ///< names of curves that a run's files have no place for
};

/// Every run that was not deleted of the store `mlruns`, into out/EXPERIMENT/RUN. ConfigError where it is no store, a
/// run has no loss, or a folder already holds a run: then nothing is written.
std::vector<ImportedRun> import_mlflow(const std::filesystem::path& mlruns, const std::filesystem::path& out);

/// The file `history` into the folder out/NAME, NAME being that of the file. ConfigError likewise, IoError for a line
/// that is no object.
ImportedRun import_wandb(const std::filesystem::path& history, const std::filesystem::path& out);

}  // namespace trireme::observe
