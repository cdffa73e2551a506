#include "trireme/comm/launch.h"

#include <charconv>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "trireme/base/env.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using std::string_view;

// The names one launcher uses for the same four things; empty where it has none.
struct Names {
  string_view launcher, rank, ranks, local_rank, local_ranks;
};
constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi = {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Names kSlurm = {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""};
constexpr Names kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};

// Digits only: "4x" or " 4" in a variable that a script was to fill is a mistake worth hearing about.
template <typename Integer>
std::optional<Integer> strict_number(string_view text) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

class Environment {
 public:
  explicit Environment(const EnvLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(string_view name) const {
    if (name.empty()) return std::nullopt;
    auto value = lookup_(name);
    if (value && value->empty()) value.reset();
    return value;
  }
  bool has(string_view name) const { return text(name).has_value(); }

  std::optional<int> number(string_view name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    const auto number = strict_number<int>(*value);
    if (!number) {
      throw ConfigError(
          fmt::format("{} must be a whole number from 0 to {}, but is \"{}\"", name, std::numeric_limits<int>::max(),
                      *value),
          fmt::format("set {} to a number, as mpirun, srun and torchrun do, or unset all of the launcher's variables",
                      name));
    }
    return number;
  }

  // "RANK=3, WORLD_SIZE is not set": what an error about several variables shows.
  std::string show(std::span<const string_view> names) const {
    std::string out;
    for (const auto name : names) {
      if (name.empty()) continue;
      const auto value = text(name);
      out += fmt::format("{}{}{}", out.empty() ? "" : ", ", name, value ? "=" + *value : " is not set");
    }
    return out;
  }
  std::string show(std::initializer_list<string_view> names) const {
    return show(std::span(names.begin(), names.size()));
  }

 private:
  const EnvLookup& lookup_;
};

void check_range(const Environment& env, string_view rank_name, int rank, string_view ranks_name, int ranks) {
  if (ranks >= 1 && rank < ranks) return;
  throw ConfigError(
      fmt::format("{}: ranks are numbered from 0 and must be below their count", env.show({rank_name, ranks_name})),
      fmt::format("start all ranks through one launcher, or unset {} and {}", rank_name, ranks_name));
}

// The four numbers under one launcher's names. Rank and count are needed; what is local may be unknown.
Launch read_numbers(const Environment& env, const Names& names, Launch::Kind kind) {
  const auto rank = env.number(names.rank), ranks = env.number(names.ranks);
  if (!rank || !ranks) {
    throw ConfigError(
        fmt::format("{}'s variables are only half there: {}", names.launcher, env.show({names.rank, names.ranks})),
        fmt::format("start through the launcher, which sets both; or, for a run in one process, unset {}",
                    rank ? names.rank : names.ranks));
  }
  check_range(env, names.rank, *rank, names.ranks, *ranks);
  const int local_rank = env.number(names.local_rank).value_or(-1);
  const int local_ranks = env.number(names.local_ranks).value_or(-1);
  if (local_rank >= 0 && local_ranks >= 0) {
    check_range(env, names.local_rank, local_rank, names.local_ranks, local_ranks);
  }
  if (local_ranks > *ranks || local_rank > *rank) {
    throw ConfigError(fmt::format("{}: a node cannot have more ranks than the job, nor a rank a higher number on its "
                                  "node than in the job",
                                  env.show({names.rank, names.ranks, names.local_rank, names.local_ranks})),
                      fmt::format("unset {} and {}, or start through the launcher", names.local_rank,
                                  names.local_ranks.empty() ? names.rank : names.local_ranks));
  }
  return {.kind = kind, .rank = *rank, .ranks = *ranks, .local_rank = local_rank, .local_ranks = local_ranks};
}

int read_port(const Environment& env) {
  const int port = env.number("MASTER_PORT").value_or(0);
  if (port < 1 || port > 65535) {
    throw ConfigError(fmt::format("MASTER_PORT={} is no TCP port", port), "set MASTER_PORT to one from 1024 to 65535");
  }
  return port;
}

void read_master(const Environment& env, Launch& launch) {
  const auto host = env.text("MASTER_ADDR");
  if (!host || !env.has("MASTER_PORT")) {
    throw ConfigError(fmt::format("{}, but the place where ranks meet is not: {}", env.show({"RANK", "WORLD_SIZE"}),
                                  env.show({"MASTER_ADDR", "MASTER_PORT"})),
                      "set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there, e.g. 29500, or start "
                      "through torchrun, which sets both");
  }
  launch.control_host = *host;
  launch.control_port = read_port(env);
  // torchrun's agent then keeps MASTER_PORT for a store of its own, and ours would find it taken.
  if (env.text("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    launch.control_port += launch.control_port < 65535 ? 1 : -1;
  }
}

// The first host of Slurm's compressed list: "gpu[007-012,020],cpu1" begins with gpu007.
std::string first_host(const std::string& list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    host += list.substr(i + 1, list.find_first_of("-,]", i) - i - 1);
    i = list.find(']', i);
    if (i == std::string::npos) return {};
  }
  return host;
}

// Entry `node` of Slurm's compressed counts: "2(x3),1" is 2, 2, 2, 1. Nothing when it is not of that form.
std::optional<int> count_of_node(string_view counts, int node) {
  while (!counts.empty()) {
    const auto comma = counts.find(',');
    const string_view entry = counts.substr(0, comma);
    counts = comma == string_view::npos ? "" : counts.substr(comma + 1);
    const auto times_at = entry.find("(x");
    const auto count = strict_number<int>(entry.substr(0, times_at));
    const auto times = times_at == string_view::npos
                           ? std::optional(1)
                           : strict_number<int>(entry.substr(times_at + 2, entry.size() - times_at - 3));
    if (!count || !times) return std::nullopt;
    if (node < *times) return count;
    node -= *times;
  }
  return std::nullopt;
}

// Batch scripts and interactive shells run as steps too, under reserved numbers near 2^32, with the whole job's count
// of tasks in their environment.
bool is_srun_task(const Environment& env) {
  const auto step = env.text("SLURM_STEP_ID");
  return step && strict_number<int>(*step) && env.has(kSlurm.rank);
}

Launch read_slurm(const Environment& env) {
  Launch launch = read_numbers(env, kSlurm, Launch::Kind::kSlurm);
  if (const auto pmix = env.number("PMIX_RANK"); pmix && pmix != launch.rank) {
    throw ConfigError(
        fmt::format("{}: two launchers disagree about who this process is", env.show({"SLURM_PROCID", "PMIX_RANK"})),
        "start ranks with one launcher: srun --mpi=pmix, or mpirun alone; or unset PMIX_RANK");
  }
  launch.pmix = env.has("PMIX_RANK");
  const auto node = env.number("SLURM_NODEID");
  const auto counts = env.text("SLURM_STEP_TASKS_PER_NODE");
  if (node && counts) launch.local_ranks = count_of_node(*counts, *node).value_or(-1);
  if (env.has("MASTER_ADDR") && env.has("MASTER_PORT")) {
    launch.control_host = *env.text("MASTER_ADDR");
    launch.control_port = read_port(env);
    return launch;
  }
  const auto job = env.number("SLURM_JOB_ID");
  const std::string host = first_host(env.text("SLURM_STEP_NODELIST").value_or(""));
  if (job && !host.empty()) {
    launch.control_host = host;
    // Below the ports the system hands out by itself; steps of one job, and jobs in a row, get different ones.
    constexpr std::int64_t kFirst = 20'000, kPorts = 10'000, kStepsApart = 7;
    const std::int64_t step = env.number("SLURM_STEP_ID").value_or(0);
    launch.control_port = static_cast<int>(kFirst + (*job * kStepsApart + step) % kPorts);
  }
  return launch;
}

// RANK and WORLD_SIZE exported by a script beside a real launcher: fine when they say the same.
void check_agrees(const Environment& env, const Launch& launch, const Names& names) {
  if (!env.has(kTorchrun.rank) && !env.has(kTorchrun.ranks)) return;
  if (env.number(kTorchrun.rank).value_or(launch.rank) == launch.rank &&
      env.number(kTorchrun.ranks).value_or(launch.ranks) == launch.ranks) {
    return;
  }
  throw ConfigError(fmt::format("{} contradict {}'s {}", env.show({kTorchrun.rank, kTorchrun.ranks}), names.launcher,
                                env.show({names.rank, names.ranks})),
                    fmt::format("unset RANK and WORLD_SIZE to be started by {} (a shell profile may export them), or "
                                "start through torchrun",
                                names.launcher));
}

}  // namespace

Launch detect_launch(const EnvLookup& lookup) {
  const Environment env(lookup);
  const auto either = [&](const Names& names) { return env.has(names.rank) || env.has(names.ranks); };
  if (env.has("TORCHELASTIC_RUN_ID")) {
    Launch launch = read_numbers(env, kTorchrun, Launch::Kind::kTorchrun);
    if (launch.ranks == 1) return {};  // nobody to meet: a run in one process
    read_master(env, launch);
    return launch;
  }
  for (const Names& names : {kOpenMpi, kPmi}) {
    if (!either(names)) continue;
    const Launch launch = read_numbers(env, names, Launch::Kind::kMpi);
    check_agrees(env, launch, names);
    return launch;
  }
  if (is_srun_task(env)) {
    const Launch launch = read_slurm(env);
    check_agrees(env, launch, kSlurm);
    return launch;
  }
  if (either(kTorchrun)) {
    Launch launch = read_numbers(env, kTorchrun, Launch::Kind::kTorchrun);
    if (launch.ranks == 1) return {};  // nobody to meet: a run in one process
    read_master(env, launch);
    return launch;
  }
  if (env.has("PMIX_RANK")) {
    throw ConfigError(fmt::format("{}: a PMIx launcher started this process, but the number of ranks is not there",
                                  env.show({"PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})),
                      "start through mpirun or srun, or unset PMIX_RANK to run as one process");
  }
  return {};
}

Launch detect_launch() {
  return detect_launch([](string_view name) { return env(name); });
}

std::string to_text(const Launch& launch) {
  constexpr string_view kKinds[] = {"no launcher", "MPI", "Slurm", "torchrun"};
  std::string out =
      fmt::format("rank {} of {} ({})", launch.rank, launch.ranks, kKinds[static_cast<std::size_t>(launch.kind)]);
  if (launch.local_rank >= 0) out += fmt::format(", local rank {}", launch.local_rank);
  if (launch.local_rank >= 0 && launch.local_ranks >= 0) out += fmt::format(" of {}", launch.local_ranks);
  if (!launch.control_host.empty()) {
    out += fmt::format(", control plane at {}:{}", launch.control_host, launch.control_port);
  }
  return out;
}

}  // namespace trireme::comm
