#include "trireme/base/env.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "trireme/base/error.h"

namespace trireme {
namespace {

using enum EnvGroup;

constexpr EnvVariable kTable[] = {
    {kTrireme, "TRIREME_LOG", "log level: trace, debug, info, warn, error or off"},
    {kTrireme, "TRIREME_DATA_PATH",
     "folders, separated by ':', that hold clusters/, devices/ and models/ of one's own"},
    {kTrireme, "TRIREME_PLUGIN_PATH",
     "folders with Trireme's plugins (MPI and UCX transports, runtime), separated by ':'"},
    {kTrireme, "TRIREME_COMM_DEADLINE", "how long a communication call may take, e.g. 10m; beats the recipe"},
    {kTrireme, "TRIREME_COMM_ALGORITHM", "algorithm for every collective, e.g. ring; beats the recipe"},
    {kTrireme, "TRIREME_COMM_COSTS", "file with measured link costs, instead of the one in the cache folder"},
    {kTrireme, "TRIREME_ISA",
     "instructions that loops may use: plain, v3, v4 or v4bf16; the machine's best when unset"},
    {kTrireme, "TRIREME_GPU", "number of this rank's GPU; its number on the node modulo the GPUs when unset"},
    {kTrireme, "TRIREME_NCCL_LIBRARY", "file of NCCL to load instead of libnccl.so.2"},
    {kTrireme, "TRIREME_HIGHS_LIBRARY", "file of HiGHS to load instead of libhighs.so.1 (scripts/setup --highs)"},
    {kTrireme, "TRIREME_TOKEN", "secret of the job, 16 characters or more: only ranks that know it may join"},
    {kTrireme, "TRIREME_TOKEN_FILE", "file of mode 0600 with that secret, e.g. on a shared file system"},
    {kTrireme, "TRIREME_JOB_ID", "any text; ranks meet only where all have the same (keeps jobs on one port apart)"},
    {kTrireme, "TRIREME_ELASTIC", "HOST:PORT of `trireme elastic`: this process is a member of its world"},
    {kTrireme, "TRIREME_MEMBER", "number of this member, used by no other before; any free one when unset"},
    {kTrireme, "TRIREME_HEARTBEAT_MS", "a member of an elastic world that is silent for so long is lost; 10000"},
    {kTrireme, "TRIREME_SNAPSHOT_EVERY", "steps between two snapshots in memory of an elastic world; 10"},

    {kLauncher, "OMPI_COMM_WORLD_RANK", "Open MPI: number of this rank"},
    {kLauncher, "OMPI_COMM_WORLD_SIZE", "Open MPI: how many ranks there are"},
    {kLauncher, "OMPI_COMM_WORLD_LOCAL_RANK", "Open MPI: number of this rank on its node"},
    {kLauncher, "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI: how many ranks share the node"},
    {kLauncher, "PMI_RANK", "MPICH, Intel MPI, Slurm's PMI: number of this rank"},
    {kLauncher, "PMI_SIZE", "MPICH, Intel MPI, Slurm's PMI: how many ranks there are"},
    {kLauncher, "MPI_LOCALRANKID", "MPICH, Intel MPI: number of this rank on its node"},
    {kLauncher, "MPI_LOCALNRANKS", "MPICH, Intel MPI: how many ranks share the node"},
    {kLauncher, "PMIX_RANK", "PMIx: number of this rank; must agree with Slurm's"},
    {kLauncher, "SLURM_PROCID", "Slurm: number of this rank"},
    {kLauncher, "SLURM_NTASKS", "Slurm: how many ranks there are"},
    {kLauncher, "SLURM_LOCALID", "Slurm: number of this rank on its node"},
    {kLauncher, "SLURM_STEP_ID", "Slurm: there only when srun started this process"},
    {kLauncher, "SLURM_JOB_ID", "Slurm: the job; the control plane's port follows from it"},
    {kLauncher, "SLURM_NODEID", "Slurm: number of this node in the job"},
    {kLauncher, "SLURM_STEP_NODELIST", "Slurm: the nodes; rank 0 is on the first"},
    {kLauncher, "SLURM_STEP_TASKS_PER_NODE", "Slurm: how many ranks each node has"},
    {kLauncher, "SLURM_JOB_NODELIST", "Slurm: the nodes of the allocation, whose slots a sweep shares"},
    {kLauncher, "SLURM_TASKS_PER_NODE", "Slurm: tasks that the allocation was made for, of each node"},
    {kLauncher, "SLURM_JOB_CPUS_PER_NODE", "Slurm: cores of the allocation on each node"},
    {kLauncher, "SLURM_MEM_PER_NODE", "Slurm: memory of the allocation on each node, in megabytes"},
    {kLauncher, "RANK", "torchrun: number of this rank"},
    {kLauncher, "WORLD_SIZE", "torchrun: how many ranks there are"},
    {kLauncher, "LOCAL_RANK", "torchrun: number of this rank on its node"},
    {kLauncher, "LOCAL_WORLD_SIZE", "torchrun: how many ranks share the node"},
    {kLauncher, "MASTER_ADDR", "torchrun: host of rank 0, where ranks meet"},
    {kLauncher, "MASTER_PORT", "torchrun: port of rank 0, where ranks meet"},
    {kLauncher, "TORCHELASTIC_RUN_ID", "torchrun: set when torchrun itself started this process"},
    {kLauncher, "TORCHELASTIC_USE_AGENT_STORE", "torchrun: True when it occupies MASTER_PORT; Trireme takes the next"},

    {kSystem, "XDG_CACHE_HOME", "where cached measurements go; $HOME/.cache when unset"},
    {kSystem, "HOME", "the user's folder"},
    {kSystem, "CUDA_VISIBLE_DEVICES", "CUDA: GPUs that are there; trials of a sweep get one of them for each slot"},
    {kSystem, "NCCL_HOSTID", "NCCL: the host it believes to be on; set for ranks that share a GPU when unset"},
    {kSystem, "ONEDNN_MAX_CPU_ISA", "oneDNN: most it may use of the CPU; set when unset and AMX is announced by half"},
    {kSystem, "OMP_WAIT_POLICY", "OpenMP: how CPU threads wait, ACTIVE or PASSIVE; train.omp_wait_policy beats it"},
    {kSystem, "GOMP_SPINCOUNT",
     "GCC's OpenMP: rounds that waiting CPU threads spin before they sleep; 10000 when unset"},
    {kSystem, "UCX_ERROR_SIGNALS", "UCX: signals it handles; none when unset, so that ours stay"},
    {kSystem, "UCX_TCP_AF_PRIO", "UCX: address families in order of preference; IPv6 first where comm.interface asks"},
    {kSystem, "UCX_TCP_CONN_NB", "UCX: y, set when unset: a TCP connection that is refused leaves no descriptor open"},
    {kSystem, "UCX_TCP_RX_SEG_SIZE", "UCX: most bytes taken from a TCP connection at once; 320k when unset"},
    {kSystem, "NO_COLOR", "any value: no colours on the terminal (no-color.org)"},
};

std::string_view heading(EnvGroup group) {
  switch (group) {
    case kTrireme:
      return "Environment variables:";
    case kLauncher:
      return "Set by launchers (torchrun, else the first of Open MPI, PMI, Slurm and RANK set by hand that is there):";
    case kSystem:
      return "Also read:";
  }
  return {};
}

}  // namespace

std::span<const EnvVariable> env_table() { return kTable; }

std::optional<std::string> env(std::string_view name) {
  const auto row = std::ranges::find(kTable, name, &EnvVariable::name);
  TRIREME_CHECK(row != std::end(kTable), "environment variable {} is read but not in the table of base/env.cpp", name);
  const char* value = std::getenv(row->name.data());  // names in the table are literals: they end in a zero
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<std::string> env_by_name(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::vector<std::pair<std::string, std::string>> env_with_prefixes(std::span<const std::string_view> prefixes) {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals == text.npos) continue;
    if (std::ranges::any_of(prefixes, [&](std::string_view prefix) { return text.starts_with(prefix); }))
      found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::ranges::sort(found);
  return found;
}

bool env_is_secret(std::string_view name) { return name == "TRIREME_TOKEN" || name == "TRIREME_JOB_ID"; }

std::optional<std::string> shown_env(std::string_view name) {
  auto value = env(name);
  if (value && env_is_secret(name)) value = "(set)";
  return value;
}

void set_env(std::string_view name, const std::string& value) {
  const auto row = std::ranges::find(kTable, name, &EnvVariable::name);
  TRIREME_CHECK(row != std::end(kTable), "environment variable {} is set but not in the table of base/env.cpp", name);
  setenv(row->name.data(), value.c_str(), /*overwrite=*/1);
}

std::optional<int> env_int(std::string_view name) {
  const auto text = env(name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size() || value < 0) {
    throw ConfigError(
        fmt::format("environment variable {} must be a whole number from 0 up, but is \"{}\"", name, *text),
        fmt::format("unset {} or set it to a number, e.g. {}=0", name, name));
  }
  return value;
}

std::filesystem::path cache_folder() {
  const auto cache = env("XDG_CACHE_HOME");
  return (cache ? std::filesystem::path(*cache) : std::filesystem::path(env("HOME").value_or(".")) / ".cache") /
         "trireme";
}

std::string env_help() {
  std::size_t width = 0;
  for (const EnvVariable& row : kTable) width = std::max(width, row.name.size());
  std::string out;
  const EnvVariable* before = nullptr;
  for (const EnvVariable& row : kTable) {
    if (before == nullptr || before->group != row.group) {
      out += fmt::format("{}{}\n", before == nullptr ? "" : "\n", heading(row.group));
    }
    out += fmt::format("  {:<{}}  {}\n", row.name, width, row.meaning);
    before = &row;
  }
  return out;
}

}  // namespace trireme
