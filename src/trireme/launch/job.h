// launch/job.h -- what is to be run, on how many ranks of how many nodes: the same value for every launcher.
//
// Whoever makes one has checked that the recipe fits (plan/check_recipe.h); launchers only say where ranks go.
// Depends on: base.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::launch {

using Variable = std::pair<std::string, std::string>;

/// A point of a sweep: what its run has beside the others' words.
struct SweepPoint {
  std::vector<std::string> sets;  ///< "optim.learning_rate=1e-3"
  std::filesystem::path out;
};

struct Job {
  std::string name;
  std::string program;            ///< as its nodes find it
  std::string recipe;             ///< seen from `folder`
  std::vector<std::string> sets;  ///< of --set
  std::filesystem::path folder;   ///< where commands are started
  std::filesystem::path out;      ///< the run's directory; of a sweep, that of its runs
  bool resume = false;            ///< the first start already does
  int ranks = 1, nodes = 1, ranks_per_node = 1;
  bool gpus = false;          ///< one for each rank
  int cores_per_rank = 0;     ///< 0: what the nodes give
  double grace_seconds = 60;  ///< that a run may take to save (checkpoint.grace)
  std::vector<Variable> environment;
  std::vector<SweepPoint> sweep;  ///< empty: one run
  int port = 29500;               ///< of rank 0, where ranks meet
};

inline constexpr std::string_view kTokenFile = "TRIREME_TOKEN_FILE";
/// Where ranks find the job's token, by the job's environment; empty where it names none.
std::string token_file(const Job& job);

/// "trireme train RECIPE --set ... --out RUN" of a rank.
std::vector<std::string> train_words(const Job& job);

/// What torchrun sets for a rank, in its names.
std::vector<Variable> torchrun_environment(const Job& job, const std::string& master, int rank, int local_rank,
                                           int local_ranks, int node);

/// A command, started in a folder with these variables, as a script of sh. What comes on its standard input are names
/// of signals for the command, a line each; its end ends the command, so nothing outlives who started it, through ssh
/// too.
std::string guarded_script(const std::filesystem::path& folder, const std::vector<std::string>& words,
                           const std::vector<Variable>& environment);
/// One rank's command so, in job.folder.
std::string rank_script(const Job& job, const std::vector<Variable>& environment);

}  // namespace trireme::launch
