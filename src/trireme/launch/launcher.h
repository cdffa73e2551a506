// launch/launcher.h -- who starts the ranks of a job: Slurm, Kubernetes, ssh, this machine.
//
//   const Launcher& slurm = *find_launcher("slurm");
//   const Submission submission = slurm.prepare(job, settings);     // a value: printed by --dry-run, or carried out
//   submit(submission)
//
// To add one: write launch/NAME.cpp with a class and make_NAME(), declare it at the end of this file and list it in the
// table of launcher.cpp. Its flag, its settings and their help follow from what it says of itself; the shared tests
// then cover it.
// Depends on: job, base.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/config.h"
#include "trireme/launch/job.h"

namespace trireme::launch {

/// An option of one launcher.
struct Setting {
  std::string name;   ///< "partition": --partition
  std::string value;  ///< what stands for it in the help: "NAME"
  std::string meaning;
  std::string standard;  ///< what it is when it is not given; may be empty
};

class Launcher;

/// What was given of a launcher's settings, with its standards for the rest; also the value of the flag that chose it.
class Settings {
 public:
  Settings(const Launcher& launcher, const std::map<std::string, std::string>& given);
  const std::string& text(const std::string& name) const;
  /// Throws ConfigError naming the option.
  int number(const std::string& name, int least) const;
  std::chrono::seconds seconds(const std::string& name) const;

 private:
  std::map<std::string, std::string> values_;
};

/// What is started here.
struct Process {
  std::string name;    ///< "rank 3 on node7"
  std::string prefix;  ///< of its lines: "[rank 3] "
  std::vector<std::string> words;
};

/// What a launcher would do, as data: hand a text to a command, or start processes.
struct Submission {
  std::string text;                  ///< a script or manifest
  std::vector<std::string> command;  ///< that reads it on its standard input
  std::vector<Process> processes;
};

class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual std::string name() const = 0;     ///< "slurm": chosen by --slurm
  virtual std::string value() const = 0;    ///< what --NAME takes, "HOSTS"; empty: a flag
  virtual std::string meaning() const = 0;  ///< in the help
  virtual std::vector<Setting> settings() const = 0;
  /// Ranks that there is room for by its settings alone; 0 where those do not say.
  virtual int slots(const Settings& settings) const;
  /// Nodes that its settings name; 0 where those do not say.
  virtual int nodes(const Settings& settings) const;
  /// Where it finds the program unless --program says; empty: where this one lies.
  virtual std::string program() const { return {}; }
  /// Whether ranks are children of this process, and so have its environment without being given it.
  virtual bool passes_environment_on() const { return false; }
  /// All that is wrong with this job for this launcher.
  virtual std::vector<config::Problem> find_problems(const Job& job, const Settings& settings) const = 0;
  /// For a job without problems.
  virtual Submission prepare(const Job& job, const Settings& settings) const = 0;
};

std::span<const std::unique_ptr<const Launcher>> launchers();
/// Null when there is none of that name.
const Launcher* find_launcher(std::string_view name);

/// What --dry-run prints: the text as it is, or a line of sh for each process.
std::string to_text(const Submission& submission);

/// Carries it out; the exit status. A text's command prints by itself; processes: launch/processes.h.
int submit(const Submission& submission);

std::unique_ptr<const Launcher> make_slurm();
std::unique_ptr<const Launcher> make_jobset();
std::unique_ptr<const Launcher> make_hosts();
std::unique_ptr<const Launcher> make_node();

}  // namespace trireme::launch
