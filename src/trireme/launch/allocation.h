// launch/allocation.h -- the nodes of the Slurm allocation that this process is in, and job steps (srun) on some of
// them.
//
//   const Allocation allocation = slurm_allocation(0, &env);           // within salloc or a batch script
//   srun_words({.nodes = {"n1", "n3"}, .tasks = 4, .cores_per_task = 8})  // {"srun", "--nodes=2", ...}
//
// For whoever shares the nodes among several commands and keeps the account of slots itself: Slurm is asked for steps
// that fit, so none of them waits in its queue.
// Depends on: formats (host lists), base.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

struct Allocation {
  struct Node {
    std::string name;
    int slots = 1;
    int cores = 1;
    std::int64_t megabytes = 0;  ///< of memory that the job was given there; 0: Slurm does not count it
    bool operator==(const Node&) const = default;
  };
  std::vector<Node> nodes;

  /// Of a slot, on the node that gives least: the same everywhere, so that a command computes alike on any node.
  int cores_per_slot() const;
  std::int64_t megabytes_per_slot() const;
};

/// As env() of base/env.h.
using EnvironmentLookup = std::function<std::optional<std::string>(std::string_view name)>;

/// What salloc and sbatch say of the nodes. `slots` of each node; 0: the tasks that the allocation was made for.
/// ConfigError outside an allocation, and where its variables are no lists of Slurm's.
Allocation slurm_allocation(int slots, const EnvironmentLookup& environment);

/// "2(x3),1" is 2, 2, 2, 1; ConfigError that names `variable` for what is no such list.
std::vector<int> slurm_counts(std::string_view text, std::string_view variable);

/// One step: tasks on these nodes, as many on each.
struct SlurmStep {
  std::vector<std::string> nodes;
  int tasks = 1;
  int cores_per_task = 1;
  std::int64_t megabytes_per_node = 0;  ///< 0: not said
  int gpus_per_task = 0;
  std::string mpi = "none";  ///< srun's --mpi
};

/// srun with its options; the command follows them.
std::vector<std::string> srun_words(const SlurmStep& step);

}  // namespace trireme::launch
