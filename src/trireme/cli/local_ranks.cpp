#include "trireme/cli/local_ranks.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "trireme/base/env.h"
#include "trireme/base/error.h"
#include "trireme/base/sha256.h"
#include "trireme/comm/control/socket.h"

namespace trireme::cli {
namespace {

using namespace std::chrono_literals;

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

}  // namespace

void become_local_ranks(int ranks, const std::vector<std::string>& command_line) {
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

}  // namespace trireme::cli
