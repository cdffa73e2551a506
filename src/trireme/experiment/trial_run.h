// experiment/trial_run.h -- a trial as a run of `trireme train`: its command line, and what its folder says in the end.
//
// A job until step N is a run of N steps: it evaluates and saves a checkpoint there by itself, and going on is the same
// command with a later N and --resume. What a recipe derives from its last step, the end of the learning rate's
// schedule, is pinned to the whole training, so that a trial that stops on the way is, to the bit, the beginning of one
// that does not.
//
// On this machine a trial is a process, whose ranks are threads. On nodes of a Slurm allocation the process is a step
// of one task; only a trial on several nodes has a task, and so a process, for each rank.
// Depends on: experiment, launch (allocation), spec, observe.
#pragma once

#include <string>
#include <vector>

#include "trireme/experiment/experiment.h"
#include "trireme/launch/allocation.h"

namespace trireme::experiment {

/// How trials are started.
struct TrialProgram {
  std::string program = "trireme";  ///< as a path or by PATH
  int restarts = 2;                 ///< of a crashed run that brought no new checkpoint
  int threads = 0;                  ///< of each rank, where the recipe does not say; 0: the program's own choice
};

/// Where a trial runs. Without nodes: on this machine.
struct TrialPlace {
  std::vector<int> slots = {};                       ///< of this machine: a trial on GPUs gets those of these numbers
  std::vector<launch::Allocation::Node> nodes = {};  ///< with as many slots as it has of each, and what belongs to them
  std::string mpi = "pmix";                          ///< srun's --mpi where they are several
};

struct TrialCommand {
  std::vector<std::string> words;  ///< empty where the setting cannot be trained
  std::string why;                 ///< then
};

/// ConfigError where this machine does not have the GPU of a slot.
TrialCommand trial_command(const ExperimentFolder& folder, const Experiment& experiment, const Job& job,
                           const TrialProgram& program, const TrialPlace& place = {});

/// The part of CUDA_VISIBLE_DEVICES that is of these slots; `visible`: what it is for this process, if it is set.
std::string devices_of_slots(const std::vector<int>& slots, const std::optional<std::string>& visible);

/// GPUs of this machine that this process may use; nothing: it has none, or they are not known.
struct GpusHere {
  std::optional<std::string> visible;  ///< CUDA_VISIBLE_DEVICES
  int count = 0;                       ///< of the machine, as far as /dev tells
};
GpusHere gpus_here();

/// Before anything is made or started: ConfigError where trials train on GPUs and a slot would have none. Otherwise its
/// trials would fail, and count as the worst.
void check_gpus_of_slots(const std::filesystem::path& recipe, const std::vector<std::string>& sets, int slots,
                         const GpusHere& gpus);

/// Before the first step of a copy: the run of the trial it copies, with the checkpoint it begins with.
void copy_run(const std::filesystem::path& from, const std::filesystem::path& to);

/// How the run ended that was started for this job, by its exit status; nothing: it was asked to stop, and has saved.
std::optional<Result> result_of(const ExperimentFolder& folder, const Job& job, int status);

/// Steps of the recipe's whole training, and what would stop a sweep of it: for the command line.
std::int64_t max_steps_of(const std::filesystem::path& recipe, const std::vector<std::string>& sets);

}  // namespace trireme::experiment
