#include "trireme/agile/spot_drill.h"

#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <memory>
#include <thread>

#include "trireme/base/child_process.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/stopwatch.h"
#include "trireme/comm/control.h"
#include "trireme/comm/mailbox.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"

namespace trireme::agile {
namespace {

using namespace std::chrono_literals;

constexpr int kControllerRank = 0, kMostMachines = 4096;
constexpr auto kSpotPatience = 120s;
constexpr auto kGradientTime = 3ms;  // a machine's work: evictions fall into it

comm::TcpControlOptions spot_control(int rank, int port) {
  return {.rank = rank,
          .ranks = kMostMachines,
          .port = port,
          .heartbeat_every = 250ms,
          .heartbeat_timeout = 10s,
          .goodbye_timeout = 1s};
}

comm::UcxMailOptions spot_mail(int address) { return {.address = address, .deadline = kSpotPatience, .linger = 500ms}; }

/// A function of partition, clock and weights: a clock that is missing or comes twice shows in every number after it.
AgileJob spot_job(const SpotDrillOptions& options, bool slow) {
  AgileJob job;
  job.processes = true;
  job.reliable = options.reliable;
  job.shards = options.shards;
  job.partitions = options.partitions;
  job.learning_rate = 0.05;
  job.weights.assign(static_cast<std::size_t>(options.weights), 1.0);
  job.changes = {{0, options.spot}};
  for (int eviction = 0; eviction < options.evictions; ++eviction) {
    job.changes.push_back({(2 * eviction + 1) * options.every, 0});
    job.changes.push_back({(2 * eviction + 2) * options.every, options.spot});
  }
  job.clocks = (2 * options.evictions + 1) * options.every;
  job.gradient = [seed = options.seed, slow](int partition, int clock, const std::vector<double>& weights) {
    const Random random(seed, fmt::format("agile/drill/{}/{}", partition, clock));
    std::vector<double> gradient(weights.size());
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = random.uniform(i) - 0.5 + 0.1 * weights[(i + 1) % weights.size()];
    if (slow) std::this_thread::sleep_for(kGradientTime);
    return gradient;
  };
  return job;
}

}  // namespace

void run_spot_machine(const SpotDrillOptions& options, int machine, int rank, int port) {
  const AgileJob job = spot_job(options, /*slow=*/true);
  const auto plane = comm::connect_tcp_control(spot_control(rank, port));
  const auto mailbox = comm::make_ucx_mailbox(*plane, spot_mail(1 + machine));
  run_agile_machine(job, *mailbox);
}

SpotDrillResult run_spot_drill(const SpotDrillOptions& options) {
  if (options.reliable < 1 || options.spot < 1 || options.every < 1)
    throw ConfigError("an eviction needs reliable machines, spot machines and clocks between",
                      "start it with --reliable 2 --spot 4 --every 4");
  const auto begin = std::chrono::steady_clock::now();
  const AgileJob job = spot_job(options, /*slow=*/false);
  const auto control = comm::make_tcp_control_server(spot_control(kControllerRank, 0));
  const auto plane = comm::connect_tcp_control(spot_control(kControllerRank, control->port()));
  std::map<int, std::unique_ptr<ChildProcess>> children;
  int processes = 0;
  const auto start = [&](int machine) {
    std::vector<std::string> words = options.machine_command;
    for (const std::string& word :
         {std::string("--machine"), fmt::format("{}", machine), std::string("--rank"), fmt::format("{}", ++processes),
          std::string("--port"), fmt::format("{}", control->port())})
      words.push_back(word);
    children[machine] = std::make_unique<ChildProcess>(words);
  };
  for (int machine = 0; machine < options.reliable; ++machine) start(machine);
  SpotDrillResult result{.clocks = job.clocks};
  {
    const auto mailbox = comm::make_ucx_mailbox(*plane, spot_mail(kControllerRank));
    int gone = 0;
    result.run = run_agile_controller(job, *mailbox, [&](int machine, bool there) {
      if (there) {
        if (gone > 0 && options.tell)
          options.tell(fmt::format("eviction of {} spot machines at once; new ones come", std::exchange(gone, 0)));
        return start(machine);
      }
      // All get the signal before any is waited for.
      if (gone == 0) {
        for (auto& [number, child] : children) {
          if (number >= options.reliable) child->tell(SIGKILL);
        }
      }
      children.at(machine)->wait();
      children.erase(machine);
      ++gone;
      ++result.killed;
    });
  }
  for (auto& [machine, child] : children) child->wait();
  result.same_bits = result.run.weights == run_serial(job);
  result.each_clock_once = static_cast<int>(result.run.commits.size()) == job.clocks;
  for (std::size_t i = 0; i < result.run.commits.size(); ++i)
    result.each_clock_once = result.each_clock_once && result.run.commits[i] == static_cast<int>(i) + 1;
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace trireme::agile
