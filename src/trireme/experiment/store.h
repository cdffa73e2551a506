// experiment/store.h -- all experiments of a machine in one SQLite file, for who asks questions of many at once.
//
// An index and never the truth: the folders are, and import() makes an experiment's rows from its folder again, in one
// transaction. So a store that is lost, old or damaged is deleted and rebuilt. Several processes may read and write
// (WAL, with a time to wait for each other).
// Depends on: overview, observe (runs); SQLite behind store.cpp.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/experiment/overview.h"
#include "trireme/experiment/scheduler.h"

struct sqlite3;

namespace trireme::experiment {

struct ExperimentRow {
  std::string folder, name, search, state;
  int trials = 0;
  std::optional<int> best_trial;
  std::optional<double> best_loss;
  double created = 0;
  bool operator==(const ExperimentRow&) const = default;
};

class Store {
 public:
  /// Made where it is not there. ConfigError on a network file system, whose locks SQLite cannot rely on; IoError where
  /// the file is no store.
  explicit Store(const std::filesystem::path& file);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  /// Puts the experiment's rows in the place of those that are there: trials, attempts, metrics, checkpoints, events.
  /// `changed`: only the runs of these trials are read again.
  void import(const Overview& overview, const std::vector<int>* changed = nullptr);
  /// Which trial holds how many slots of which node now; an empty list lets all go.
  void hold_slots(const std::filesystem::path& folder, const std::vector<std::pair<int, Grant>>& held);
  /// Newest first.
  std::vector<ExperimentRow> experiments() const;
  /// The rows of a query as text, for tests and for the curious: values separated by '|'.
  std::vector<std::string> rows(const std::string& query) const;

 private:
  struct Closer {
    void operator()(sqlite3* handle) const;
  };
  void run(const std::string& statement) const;
  std::int64_t experiment_id(const Overview& overview) const;
  void import_run(std::int64_t experiment, const TrialView& trial);

  std::unique_ptr<sqlite3, Closer> handle_;
};

/// The store that lies beside an experiment's folder.
std::filesystem::path store_beside(const std::filesystem::path& experiment);

}  // namespace trireme::experiment
