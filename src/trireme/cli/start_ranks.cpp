#include "trireme/cli/start_ranks.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "trireme/base/cores.h"
#include "trireme/base/env.h"
#include "trireme/base/log.h"
#include "trireme/base/sha256.h"
#include "trireme/base/text.h"
#include "trireme/comm/control/socket.h"
#include "trireme/comm/process.h"
#include "trireme/comm/transports/emulated.h"

namespace trireme::cli {
namespace {

using namespace std::chrono_literals;
using comm::Launch;

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> words = split(text, '\0');
  if (!words.empty() && words.back().empty()) words.pop_back();
  if (words.empty()) throw IoError("this process cannot read its own command line in /proc/self/cmdline");
  words[0] = std::filesystem::read_symlink("/proc/self/exe").string();
  return words;
}

/// Becomes mpirun, which starts this program again, `ranks` times. Returns only by throwing.
[[noreturn]] void become_mpirun(int ranks) {
  std::vector<std::string> words{"mpirun", "-n", std::to_string(ranks), "--bind-to", "none"};
  if (ranks > usable_cores()) words.emplace_back("--oversubscribe");
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  for (std::string& word : own_command_line()) words.push_back(std::move(word));
  log_debug("starting {}", fmt::join(words, " "));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp("mpirun", arguments.data());
  throw ConfigError(fmt::format("could not start mpirun: {}", std::strerror(errno)),
                    "install Open MPI (package openmpi-bin), or use threads: --set comm.transport=threads");
}

// For the others to say what they know of a rank that failed, before they are ended.
constexpr auto kLocalRanksGrace = 5s;
constexpr auto kLocalRanksLook = 10ms;

/// What ends this process ends its ranks too. Written by signal handlers.
volatile sig_atomic_t ending_signal = 0;
void on_ending_signal(int signal) { ending_signal = signal; }

int free_loopback_port() {
  // Given back at once; rank 0 takes it a moment later, and says so where somebody else was quicker.
  return comm::control::local_port(comm::control::listen_at("127.0.0.1", 0));
}

pid_t start_rank(const std::vector<std::string>& command_line) {
  std::vector<char*> arguments;
  for (const std::string& word : command_line) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t process = fork();
  if (process < 0) throw IoError(fmt::format("could not start a rank: {}", std::strerror(errno)));
  if (process > 0) return process;
  execv(arguments[0], arguments.data());
  std::perror(arguments[0]);
  _exit(127);
}

int status_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

/// This program again, once for each rank, as processes of this machine that meet without MPI. They get torchrun's
/// variables, a free port of the loopback interface and a token of their own, which dies with them. What one prints,
/// all print; the first that fails ends the others, and this process with its status. Returns only by throwing.
[[noreturn]] void become_local_ranks(int ranks, const std::vector<std::string>& command_line) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, on_ending_signal);
  set_env("WORLD_SIZE", std::to_string(ranks));
  set_env("LOCAL_WORLD_SIZE", std::to_string(ranks));
  set_env("MASTER_ADDR", "127.0.0.1");
  set_env("MASTER_PORT", std::to_string(free_loopback_port()));
  set_env("TRIREME_TOKEN", to_hex(random_bytes(32)));
  std::map<pid_t, int> running;  // rank by process
  for (int rank = 0; rank < ranks; ++rank) {
    set_env("RANK", std::to_string(rank));
    set_env("LOCAL_RANK", std::to_string(rank));
    running[start_rank(command_line)] = rank;
  }
  const auto tell = [&](int signal) {
    for (const auto& [process, rank] : running) kill(process, signal);
  };
  int result = 0;
  auto patience = std::chrono::steady_clock::time_point::max();
  while (!running.empty()) {
    if (const int signal = ending_signal; signal != 0) {
      ending_signal = 0;
      tell(signal);
    }
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended > 0 && running.erase(ended) != 0) {
      if (result == 0 && status_of(status) != 0) {
        result = status_of(status);
        patience = std::chrono::steady_clock::now() + kLocalRanksGrace;
      }
      continue;
    }
    if (ended < 0 && errno == ECHILD) break;
    if (std::chrono::steady_clock::now() >= patience) {
      tell(SIGKILL);
      patience = std::chrono::steady_clock::time_point::max();
    }
    std::this_thread::sleep_for(kLocalRanksLook);
  }
  std::_Exit(result);
}

/// What ranks must have alike. Interfaces have other names on other hosts, and what a rank prints is its own affair.
std::string fingerprint_of(spec::Recipe recipe) {
  recipe.comm.interface.clear();
  recipe.log = {};
  const Sha256Digest digest = sha256(config::to_toml(recipe));
  return to_hex({reinterpret_cast<const char*>(digest.data()), 8});
}

void start_processes(const spec::Recipe& recipe, const std::function<void(comm::Rank&)>& body,
                     const comm::RanksOptions& options) {
  const Launch launch = comm::detect_launch();
  if (launch.kind == Launch::Kind::kSingle) {
    const bool ucx = options.processes == comm::ProcessTransport::kUcx;
    if (!recipe.comm.ranks) {
      throw ConfigError(fmt::format("{} was asked for, but nothing has started this process as one of several ranks",
                                    ucx ? "UCX" : "MPI"),
                        fmt::format("say how many to start with comm.ranks, or start with '{} trireme ...'",
                                    ucx ? "torchrun --no-python --nproc-per-node N" : "mpirun -n N"));
    }
    if (ucx && *recipe.comm.ranks == 1) {  // a launcher's variables for one rank say that there is no launcher
      comm::run_ranks(1, body, options);
      return;
    }
    if (ucx) become_local_ranks(*recipe.comm.ranks, own_command_line());
    become_mpirun(*recipe.comm.ranks);
  }
  if (recipe.comm.ranks && *recipe.comm.ranks != launch.ranks) {
    throw ConfigError(fmt::format("comm.ranks is {}, but {} ranks were started", *recipe.comm.ranks, launch.ranks),
                      fmt::format("leave comm.ranks out, or start {} ranks", *recipe.comm.ranks));
  }
  comm::run_process_rank(launch, body, options);
}

}  // namespace

std::string costs_path() {
  if (const auto path = env("TRIREME_COMM_COSTS")) return *path;
  return (cache_folder() / "comm-costs.toml").string();
}

comm::CommOptions comm_options(const spec::Recipe& recipe, const std::optional<std::string>& costs) {
  comm::CommOptions options;
  options.deadline = std::chrono::duration_cast<std::chrono::milliseconds>(recipe.comm.deadline);
  options.algorithm = cost::parse_algorithm(recipe.comm.algorithm).value();
  options.spin = recipe.comm.spin;
  options.recorded_calls = static_cast<std::size_t>(recipe.comm.flight_recorder_calls);
  options.segment_bytes = static_cast<std::size_t>(recipe.comm.segment);
  const std::string path = costs.value_or(costs_path());
  if (costs || env("TRIREME_COMM_COSTS") || std::filesystem::exists(path)) {
    options.costs = cost::read_cost_table(path);
    log_debug("communication costs from {}", path);
  }
  return options;
}

comm::RanksOptions member_ranks_options(const spec::Recipe& recipe, const std::optional<std::string>& costs) {
  if (recipe.comm.transport != spec::Transport::kAuto && recipe.comm.transport != spec::Transport::kUcx) {
    throw ConfigError("ranks of an elastic world talk over UCX, but comm.transport asks for something else",
                      "set comm.transport = \"ucx\", or leave it out");
  }
  comm::RanksOptions options{.comm = comm_options(recipe, costs),
                             .processes = comm::ProcessTransport::kUcx,
                             .interface = recipe.comm.interface,
                             .fingerprint = fingerprint_of(recipe),
                             .ranks_per_node = recipe.comm.ranks_per_node.value_or(0),
                             .wrap = {}};
  options.comm.flight_directory.clear();  // a rank that dies is nothing to write about here
  return options;
}

void start_ranks(const spec::Recipe& recipe, const std::function<void(comm::Rank&)>& body,
                 const std::optional<std::string>& costs) {
  comm::write_flights_on_signal();
  comm::RanksOptions threads{.comm = comm_options(recipe, costs),
                             .ranks_per_node = recipe.comm.ranks_per_node.value_or(0)};
  if (recipe.comm.transport == spec::Transport::kEmulated) {
    const auto& config = recipe.emulated;
    const comm::EmulatedNetwork network{
        .across = {.latency = config.latency, .bytes_per_second = static_cast<double>(config.bandwidth)},
        .inside = {.latency = config.node_latency, .bytes_per_second = static_cast<double>(config.node_bandwidth)}};
    threads.wrap = [network](std::unique_ptr<comm::Transport> inner) {
      return comm::make_emulated_transport(std::move(inner), network);
    };
    auto& table = threads.comm.costs;
    table.of("emulated").links = comm::links_of(network, table.of("threads").links.inside.gamma);
  }
  const bool carried_by_mpi =
      recipe.comm.transport == spec::Transport::kEmulated && recipe.emulated.over == spec::Carrier::kMpi;
  const Launch launch = comm::detect_launch();
  threads.interface = recipe.comm.interface;
  threads.fingerprint = fingerprint_of(recipe);
  if (recipe.comm.transport == spec::Transport::kUcx) threads.processes = comm::ProcessTransport::kUcx;
  if (recipe.comm.transport == spec::Transport::kMpi || carried_by_mpi)
    threads.processes = comm::ProcessTransport::kMpi;
  if (threads.processes != comm::ProcessTransport::kAuto ||
      (recipe.comm.transport == spec::Transport::kAuto && launch.kind != Launch::Kind::kSingle)) {
    start_processes(recipe, body, threads);
    return;
  }
  if (launch.kind != Launch::Kind::kSingle && launch.ranks > 1) {
    throw ConfigError(fmt::format("this process was started as rank {} of {}, but threads were asked for as ranks",
                                  launch.rank, launch.ranks),
                      "leave comm.transport out to use the ranks that were started, or start without a launcher");
  }
  const int ranks = recipe.comm.ranks.value_or(1);
  constexpr int kMostThreads = 1024;  // every two of them have a queue
  if (ranks > kMostThreads) {
    throw ConfigError(fmt::format("{} ranks are too many threads for one process", ranks),
                      fmt::format("ask for at most {} (comm.ranks), or start processes: mpirun -n {} trireme ...",
                                  kMostThreads, ranks));
  }
  comm::run_ranks(ranks, body, threads);
}

}  // namespace trireme::cli
