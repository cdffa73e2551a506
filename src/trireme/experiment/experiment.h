// experiment/experiment.h -- an experiment on the disk: what is searched, and the journal of what was asked and found.
//
//   DIR/experiment.json    search, parameters, numbers: written once
//   DIR/recipe.toml        the recipe as it was when the experiment began
//   DIR/journal.jsonl      a line for each job that was asked for and each result, in their order
//   DIR/trials/0007/       a run, as any other (docs/runs.md); 0007-1 after its setting was drawn again
//   DIR/trials/0007.log    what its process printed
//   DIR/wanted             "paused" or "stopped": what the experiment was asked to be; none: run
//   DIR/lock               held by the process that runs it
//
// This folder is the truth: search, store and tables are made from it again whenever they are needed.
// Depends on: search, observe (JSON).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/experiment/search.h"

namespace trireme::experiment {

struct Experiment {
  std::string name;
  std::string search = "asha";
  SearchOptions options;
  std::vector<std::string> sets;    ///< "KEY=VALUE" of every trial, beside its own setting
  std::filesystem::path directory;  ///< trials work in, so that relative paths in the recipe mean the same
  int slots_per_trial = 1;          ///< ranks
  int priority = 0;
  double weight = 1;   ///< of its fair share
  double created = 0;  ///< seconds since 1970
  bool operator==(const Experiment&) const = default;
};

/// What somebody asked an experiment to be.
enum class Wanted : std::uint8_t { kRunning, kPaused, kStopped };

class ExperimentFolder {
 public:
  explicit ExperimentFolder(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path recipe() const { return path_ / "recipe.toml"; }
  std::filesystem::path journal() const { return path_ / "journal.jsonl"; }
  std::filesystem::path trials() const { return path_ / "trials"; }
  /// The run of a trial and what its process prints.
  std::filesystem::path run(int trial, int draw) const;
  std::filesystem::path log(int trial, int draw) const;

  bool holds_an_experiment() const;
  /// ConfigError when it holds one already.
  void create(const Experiment& experiment, const std::string& recipe_text) const;
  /// ConfigError when there is none; IoError that names what is damaged.
  Experiment read() const;
  /// A last line that a crash has cut is left out; another that cannot be read is an IoError with its number.
  Journal read_journal() const;

  Wanted wanted() const;
  void want(Wanted wanted) const;
  /// Whether a process runs it now.
  bool is_locked() const;

 private:
  std::filesystem::path path_;
};

/// While it lives, nobody else runs this experiment. ConfigError when somebody does.
class ExperimentLock {
 public:
  explicit ExperimentLock(const ExperimentFolder& folder);
  ~ExperimentLock();
  ExperimentLock(const ExperimentLock&) = delete;
  ExperimentLock& operator=(const ExperimentLock&) = delete;

 private:
  int descriptor_;
};

/// Appends to the journal; the lock is held. A line that a crash has cut is removed first.
class JournalFile {
 public:
  explicit JournalFile(const ExperimentFolder& folder);
  ~JournalFile();
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;
  /// On the disk when it returns: what a search was told must not be forgotten.
  void append(const std::variant<Job, Result>& entry);

 private:
  std::filesystem::path path_;
  int descriptor_;
};

/// Whether a process holds this file's lock, as runs and experiments do.
bool is_file_locked(const std::filesystem::path& file);

}  // namespace trireme::experiment
