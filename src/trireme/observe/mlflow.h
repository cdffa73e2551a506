// observe/mlflow.h -- runs as files that MLflow reads: `mlflow ui --backend-store-uri mlruns`.
//
// MLflow's store of files is a folder an experiment, in it a folder a run with meta.yaml, a file a parameter (its
// value), a file a metric (lines "milliseconds value step") and artifacts. Ids follow from where a run lies, so that
// exporting it again replaces it.
// Depends on: run_reader.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::observe {

struct MlflowExperiment {
  std::string name;
  struct Run {
    std::string name;
    std::filesystem::path folder;
  };
  std::vector<Run> runs;
};

/// Into the store in the folder `mlruns`, which is made where it is not there. Damaged ends of files are left out.
/// IoError, ConfigError.
void write_mlflow(const std::filesystem::path& mlruns, const MlflowExperiment& experiment);

}  // namespace trireme::observe
