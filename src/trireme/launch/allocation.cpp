#include "trireme/launch/allocation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/formats/format_error.h"
#include "trireme/formats/host_expression.h"

namespace trireme::launch {
namespace {

constexpr std::string_view kNodeList = "SLURM_JOB_NODELIST", kTasks = "SLURM_TASKS_PER_NODE",
                           kCores = "SLURM_JOB_CPUS_PER_NODE", kMemory = "SLURM_MEM_PER_NODE";

/// A number above zero, and nothing else.
std::optional<std::int64_t> positive(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

[[noreturn]] void fail_variable(std::string_view variable, std::string_view text, std::string_view wanted) {
  throw ConfigError(fmt::format("{} is \"{}\", which is no {}", variable, text, wanted),
                    "start the sweep as Slurm starts it: in salloc or a batch script, with its variables as they are");
}

std::vector<std::string> names_of(const EnvironmentLookup& environment) {
  const auto list = environment(kNodeList);
  if (!list) {
    throw ConfigError(fmt::format("this process is in no Slurm allocation: {} is not set", kNodeList),
                      "start it in salloc or in a script for sbatch, or leave out --slurm");
  }
  try {
    return formats::expand_hosts(*list, kNodeList);
  } catch (const formats::FormatError&) {
    fail_variable(kNodeList, *list, "list of nodes");
  }
}

/// Counts of each node; nothing where the variable is not set.
std::vector<int> counts_of(const EnvironmentLookup& environment, std::string_view variable, std::size_t nodes) {
  const auto text = environment(variable);
  if (!text) return {};
  std::vector<int> counts = slurm_counts(*text, variable);
  if (counts.size() != nodes) fail_variable(variable, *text, fmt::format("list of {} counts, one a node", nodes));
  return counts;
}

}  // namespace

std::vector<int> slurm_counts(std::string_view text, std::string_view variable) {
  std::vector<int> counts;
  for (const std::string& entry : split(text, ',')) {
    const auto times_at = entry.find("(x");
    const bool repeated = times_at != std::string::npos;
    const auto count = positive(std::string_view(entry).substr(0, times_at));
    const auto times = !repeated ? std::optional<std::int64_t>(1)
                       : entry.back() == ')'
                           ? positive(std::string_view(entry).substr(times_at + 2, entry.size() - times_at - 3))
                           : std::nullopt;
    if (!count || !times || *count > 1 << 20 || counts.size() + static_cast<std::size_t>(*times) > formats::kMostHosts)
      fail_variable(variable, text, "list of counts such as 2(x3),1");
    counts.insert(counts.end(), static_cast<std::size_t>(*times), static_cast<int>(*count));
  }
  return counts;
}

Allocation slurm_allocation(int slots, const EnvironmentLookup& environment) {
  const std::vector<std::string> names = names_of(environment);
  const std::vector<int> tasks = counts_of(environment, kTasks, names.size());
  const std::vector<int> cores = counts_of(environment, kCores, names.size());
  std::int64_t megabytes = 0;
  if (const auto text = environment(kMemory); text && *text != "0") {
    const auto value = positive(*text);
    if (!value) fail_variable(kMemory, *text, "number of megabytes");
    megabytes = *value;
  }
  Allocation allocation;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Allocation::Node node{.name = names[i], .megabytes = megabytes};
    node.slots = slots > 0 ? slots : tasks.empty() ? 1 : tasks[i];
    node.cores = cores.empty() ? node.slots : cores[i];
    if (node.cores < node.slots) {
      throw ConfigError(fmt::format("node {} has {} in this allocation, fewer than its {} slots", node.name,
                                    counted(static_cast<std::size_t>(node.cores), "core"), node.slots),
                        fmt::format("give --slots {}, or ask Slurm for more cores", node.cores));
    }
    allocation.nodes.push_back(std::move(node));
  }
  return allocation;
}

int Allocation::cores_per_slot() const {
  const auto least = std::ranges::min_element(nodes, {}, [](const Node& node) { return node.cores / node.slots; });
  return least == nodes.end() ? 1 : least->cores / least->slots;
}

std::int64_t Allocation::megabytes_per_slot() const {
  const auto least = std::ranges::min_element(nodes, {}, [](const Node& node) { return node.megabytes / node.slots; });
  return least == nodes.end() ? 0 : least->megabytes / least->slots;
}

std::vector<std::string> srun_words(const SlurmStep& step) {
  const int nodes = static_cast<int>(step.nodes.size());
  TRIREME_CHECK(nodes > 0 && step.tasks % nodes == 0, "{} tasks on {} nodes", step.tasks, nodes);
  // --exact: no more of a node than is asked for, so that other steps have the rest. --kill-on-bad-exit, --wait: ranks
  // hear of a lost one by themselves and say so. What the terminal sends is the sweep's.
  std::vector<std::string> words{"srun",
                                 fmt::format("--nodes={}", nodes),
                                 fmt::format("--nodelist={}", fmt::join(step.nodes, ",")),
                                 fmt::format("--ntasks={}", step.tasks),
                                 fmt::format("--ntasks-per-node={}", step.tasks / nodes),
                                 fmt::format("--cpus-per-task={}", step.cores_per_task),
                                 "--exact",
                                 "--input=none",
                                 "--kill-on-bad-exit=0",
                                 "--wait=600",
                                 fmt::format("--mpi={}", step.mpi)};
  if (step.megabytes_per_node > 0) words.push_back(fmt::format("--mem={}M", step.megabytes_per_node));
  if (step.gpus_per_task > 0) words.push_back(fmt::format("--gpus-per-task={}", step.gpus_per_task));
  return words;
}

}  // namespace trireme::launch
