#include "trireme/ps/drill.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "trireme/base/child_process.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/base/stopwatch.h"
#include "trireme/comm/control.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"
#include "trireme/ps/node.h"

namespace trireme::ps {
namespace {

using namespace std::chrono_literals;
using DrillClock = std::chrono::steady_clock;

constexpr int kManagerRank = 0, kWorkerAddress = 1, kFirstServer = 2, kMostRanks = 4096;
constexpr double kDrillRate = 0.05;
constexpr auto kPatience = 120s;

comm::TcpControlOptions drill_control(int rank, const DrillPlane& plane) {
  return {.rank = rank,
          .ranks = kMostRanks,
          .host = plane.host,
          .port = plane.port,
          .token = plane.token,
          .heartbeat_every = std::min(250ms, plane.heartbeat_timeout / 4),
          .heartbeat_timeout = plane.heartbeat_timeout,
          .goodbye_timeout = 1s};
}

/// A function of the weights and the step: a step that is missing or comes twice shows in every number after it.
std::vector<float> drill_gradient(const std::vector<float>& weights, std::uint64_t step, std::uint64_t seed) {
  const Random random(seed, fmt::format("ps/drill/{}", step));
  std::vector<float> noise(weights.size());
  random.fill_uniform(0, noise);
  for (std::size_t i = 0; i < weights.size(); ++i) noise[i] = noise[i] - 0.5f + 0.25f * weights[i];
  return noise;
}

/// The manager with what others may ask of it meanwhile.
class DrillManager {
 public:
  DrillManager(comm::ControlPlane& plane, const DrillOptions& options)
      : mailbox_(comm::make_ucx_mailbox(plane, {.address = kManagerRank, .deadline = kPatience, .linger = 500ms})) {
    ManagerOptions first{.address = kManagerRank, .workers = {kWorkerAddress}, .copies = options.copies};
    for (int i = 0; i < options.servers; ++i) first.servers.push_back(kFirstServer + i);
    thread_ = std::thread([this, first] {
      try {
        Manager manager(first);
        manage(*mailbox_, manager, [this](Manager& now) { note(now); });
      } catch (...) {
        const std::lock_guard lock(mutex_);
        failure_ = std::current_exception();
      }
      over_ = true;
      changed_.notify_all();
    });
  }
  ~DrillManager() { thread_.join(); }

  void died(int rank) {
    mailbox_->post(kManagerRank, kMailTag, 0, encode({.kind = Message::Kind::kDied, .node = rank}));
  }
  /// Until every range has its copies on these servers.
  void wait_for(const std::vector<int>& servers) {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_for(lock, kPatience, [&] { return over_ || (whole_ && view_.servers == servers); });
    if (failure_) std::rethrow_exception(failure_);
    if (!there || over_) {
      throw CommError(fmt::format("the {} servers had not all copies {} s after one died", servers.size(),
                                  std::chrono::duration_cast<std::chrono::seconds>(kPatience).count()));
    }
  }
  std::int64_t epochs() const { return static_cast<std::int64_t>(view_.epoch); }

 private:
  void note(const Manager& manager) {
    {
      const std::lock_guard lock(mutex_);
      view_ = manager.view();
      whole_ = manager.whole();
    }
    changed_.notify_all();
  }
  std::unique_ptr<comm::Mailbox> mailbox_;
  std::mutex mutex_;
  std::condition_variable changed_;
  View view_;
  bool whole_ = false;
  std::atomic<bool> over_{false};
  std::exception_ptr failure_;
  std::thread thread_;
};

/// Sequential steps until it is told to stop.
class DrillWorker {
 public:
  DrillWorker(comm::ControlPlane& plane, const DrillOptions& options) : plane_(plane), options_(options) {
    thread_ = std::thread([this] {
      try {
        run();
      } catch (...) {
        failure_ = std::current_exception();
      }
    });
  }
  void finish() {
    stop_ = true;
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
  }

  std::vector<float> weights;
  std::vector<double> step_seconds;
  WorkerCounters counters;

 private:
  void run() {
    const auto mailbox =
        comm::make_ucx_mailbox(plane_, {.address = kWorkerAddress, .deadline = kPatience, .linger = 500ms});
    Client client(*mailbox,
                  {.address = kWorkerAddress, .manager = kManagerRank, .keys = options_.keys, .type = ValueType::kF32});
    const std::vector<Segment> all{{0, options_.keys}};
    while (!stop_) {
      const auto begin = DrillClock::now();
      const std::vector<float> now = from_bytes<float>(client.take(client.pull({all})));
      const std::vector<float> gradient = drill_gradient(now, step_seconds.size() + 1, options_.seed);
      client.wait(client.push({all, to_bytes(std::span(gradient)), kDrillRate}));
      step_seconds.push_back(std::chrono::duration<double>(DrillClock::now() - begin).count());
    }
    weights = from_bytes<float>(client.take(client.pull({all})));
    counters = client.worker().counters();
    client.leave();
  }
  comm::ControlPlane& plane_;
  const DrillOptions& options_;
  std::atomic<bool> stop_{false};
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace

void run_drill_server(int rank, const DrillPlane& at, std::uint64_t keys, bool join) {
  const auto plane = comm::connect_tcp_control(drill_control(rank, at));
  const auto mailbox = comm::make_ucx_mailbox(*plane, {.address = rank, .deadline = kPatience, .linger = 500ms});
  Server server(
      {.address = rank, .manager = kManagerRank, .keys = keys, .type = ValueType::kF32, .chunk_bytes = 16 << 10},
      make_sgd_rule());
  serve(*mailbox, server, kManagerRank, join);
}

DrillResult run_drill(const DrillOptions& options) {
  if (options.servers <= 1 || options.copies < 2)
    throw ConfigError("a storm needs at least two servers and two copies", "start it with --servers 3 --copies 2");
  if (options.frozen > options.kills)
    throw ConfigError(fmt::format("{} of {} kills cannot freeze their server", options.frozen, options.kills),
                      fmt::format("start it with --kills {}", options.frozen));
  const auto begin = DrillClock::now();
  DrillPlane at = options.plane;
  const auto control = comm::make_tcp_control_server(drill_control(kManagerRank, at));
  at.port = control->port();
  const auto plane = comm::connect_tcp_control(drill_control(kManagerRank, at));
  std::map<int, std::unique_ptr<ChildProcess>> children;
  int next_rank = kFirstServer;
  const auto start = [&](bool join) {
    std::vector<std::string> words = {
        "--rank",      fmt::format("{}", next_rank),
        "--host",      at.host,
        "--port",      fmt::format("{}", at.port),
        "--keys",      fmt::format("{}", options.keys),
        "--heartbeat", fmt::format("{}", std::chrono::duration<double>(at.heartbeat_timeout).count())};
    if (join) words.emplace_back("--join");
    children[next_rank] = options.start(next_rank, words);
    ++next_rank;
  };
  for (int i = 0; i < options.servers; ++i) start(/*join=*/false);
  DrillResult result;
  double recovery = 0;
  {
    DrillManager manager(*plane, options);
    plane->listen(
        [&](const comm::Notice& notice) {
          if (notice.kind != comm::Notice::Kind::kLost && notice.kind != comm::Notice::Kind::kFailed) return;
          // Out of the mailboxes' directory, so that nobody goes on calling it.
          plane->erase(fmt::format("trireme/mail/address/{}", notice.rank));
          manager.died(notice.rank);
        },
        nullptr);
    DrillWorker worker(*plane, options);
    std::exception_ptr failure;
    try {
      const Random random(options.seed, "ps/drill/victims");
      const auto ranks = [&] {
        std::vector<int> alive;
        for (const auto& [rank, child] : children) alive.push_back(rank);
        return alive;
      };
      manager.wait_for(ranks());
      for (int kill = 0; kill < options.kills; ++kill) {
        std::this_thread::sleep_for(
            std::chrono::milliseconds(20 + random.below(60, 2 * static_cast<std::uint64_t>(kill))));
        const std::vector<int> alive = ranks();
        const int victim = alive[random.below(alive.size(), 2 * static_cast<std::uint64_t>(kill) + 1)];
        const bool freeze = kill >= options.kills - options.frozen;
        const auto killed = DrillClock::now();
        const std::unique_ptr<ChildProcess> child = std::move(children.at(victim));
        children.erase(victim);
        options.signal(*child, freeze ? SIGSTOP : SIGKILL);
        if (!freeze) child->wait();
        start(/*join=*/true);
        manager.wait_for(ranks());
        const double seconds = std::chrono::duration<double>(DrillClock::now() - killed).count();
        (freeze ? result.frozen_recovery : recovery) += seconds;
        if (options.tell) {
          options.tell(fmt::format("kill {}: server {} {}, server {} took its place; all copies again after {:.2f} s",
                                   kill + 1, victim, freeze ? "froze" : "died", next_rank - 1, seconds));
        }
        if (!freeze) continue;
        // It wakes up as one that was given up, with what was on its way to it: that must change nothing.
        options.signal(*child, SIGCONT);
        std::this_thread::sleep_for(200ms);
        options.signal(*child, SIGKILL);
        child->wait();
      }
    } catch (...) {
      failure = std::current_exception();
    }
    if (failure) {
      // The manager and the worker wait for servers that are not coming: the process ends with the reason.
      for (auto& [rank, child] : children) options.signal(*child, SIGKILL);
      plane->listen(nullptr, nullptr);
      try {
        std::rethrow_exception(failure);
      } catch (const Error& error) {
        std::fputs(error.block().c_str(), stderr);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
      }
      std::_Exit(1);
    }
    worker.finish();
    plane->listen(nullptr, nullptr);
    result.acknowledged = static_cast<std::int64_t>(worker.step_seconds.size());
    result.again = worker.counters.again;
    std::vector<float> serial(options.keys);
    for (std::size_t step = 1; step <= worker.step_seconds.size(); ++step) {
      const std::vector<float> gradient = drill_gradient(serial, step, options.seed);
      for (std::size_t i = 0; i < serial.size(); ++i) serial[i] -= static_cast<float>(kDrillRate) * gradient[i];
    }
    result.same_bits = serial == worker.weights;
    result.epochs = manager.epochs();
    std::vector<double> steps = worker.step_seconds;
    std::ranges::sort(steps);
    result.slowest_step = steps.empty() ? 0 : steps.back();
    result.median_step = steps.empty() ? 0 : steps[steps.size() / 2];
  }
  for (auto& [rank, child] : children) child->wait();
  const int killed = options.kills - options.frozen;
  result.recovery = killed > 0 ? recovery / killed : 0;
  result.frozen_recovery = options.frozen > 0 ? result.frozen_recovery / options.frozen : 0;
  result.seconds = std::chrono::duration<double>(DrillClock::now() - begin).count();
  return result;
}

}  // namespace trireme::ps
