// Queues of parameter servers under more load than they can take: Little's meters on each say that none grows, and
// consistency decides how fast clocks go by on links whose delays differ.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>

#include "trireme/comm/mailbox_threads.h"
#include "trireme/ps/consistency.h"
#include "trireme/ps/node.h"

namespace trireme::ps {
namespace {

using namespace std::chrono_literals;

struct Flood {
  int clocks = 100;
  std::uint64_t tau = kEventual, most = 16;
  int copies = 2;
  comm::ThreadMail links = {};
};

struct FloodQueues {
  std::map<std::string, QueueReading> queues;
  double clocks_per_second = 0;
  std::uint64_t most_stale = 0;
};

constexpr std::uint64_t kFloodKeys = 500;

/// One worker pushes as fast as consistency lets it.
FloodQueues run_flood(const Flood& flood) {
  FloodQueues found;
  std::mutex mutex;
  comm::run_thread_mailboxes(4, flood.links, [&](comm::Mailbox& mailbox) {
    const int me = mailbox.address();
    if (me == 0) {
      Manager manager({.address = 0, .servers = {1, 2}, .workers = {3}, .copies = flood.copies});
      return manage(mailbox, manager);
    }
    if (me < 3) {
      Server server({.address = me, .keys = kFloodKeys}, make_sgd_rule());
      const ServeReport report = serve(mailbox, server, 0);
      const std::lock_guard lock(mutex);
      const std::string name = "server " + std::to_string(me);
      found.queues[name + " mail"] = report.mailbox;
      found.queues[name + " requests"] = report.requests;
      found.queues[name + " outbox"] = report.outbox;
      return;
    }
    Client client(mailbox, {.address = me, .keys = kFloodKeys});
    BoundedDelay delay(flood.tau, flood.most);
    std::map<std::uint64_t, Worker::TaskId> open;
    const std::vector<double> gradient(kFloodKeys, 1e-3);
    const auto begin = std::chrono::steady_clock::now();
    const auto settle = [&] {
      std::erase_if(open, [&](const auto& entry) {
        if (!client.finished(entry.second)) return false;
        delay.done(entry.first);
        return true;
      });
    };
    for (int i = 0; i < flood.clocks; ++i) {
      while (!delay.may_begin()) {
        client.wait_for_mail();
        settle();
      }
      const std::uint64_t clock = delay.begin();
      open[clock] = client.push({{{0, kFloodKeys}}, to_bytes(std::span(gradient)), 0.1});
      client.poll();
      settle();
    }
    for (const auto& [clock, task] : open) client.wait(task);
    found.clocks_per_second =
        flood.clocks / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    found.most_stale = delay.most_stale();
    const std::lock_guard lock(mutex);
    found.queues["worker tasks"] = client.worker().queue();
    found.queues["worker outbox"] = client.outbox();
    found.queues["worker mail"] = mailbox.queue();
    client.leave();
  });
  return found;
}

/// A link that carries fewer pushes than the worker makes.
constexpr comm::ThreadMail kNarrow{.latency = 200us, .bytes_per_second = 4e6, .credit_bytes = 64 << 10};

TEST(PsQueues, LittlesLawHoldsOnEachAndNoneGrowsUnderAFlood) {
  const FloodQueues few = run_flood({.clocks = 60, .links = kNarrow}),
                    many = run_flood({.clocks = 240, .links = kNarrow});
  ASSERT_EQ(many.queues.size(), 9u);
  for (const auto& [name, queue] : many.queues) {
    // What ends with the job (the manager's last word) may be left; nothing else is.
    EXPECT_LE(queue.arrivals - queue.departures, 1) << name;
    EXPECT_NEAR(queue.length(), queue.rate() * queue.wait(), 0.05 * queue.length() + 0.02) << name;
    EXPECT_LE(queue.length(), 16 * 2 * 2) << name << ": open clocks x servers x messages of each";
    // Four times as many pushes make no queue longer: it has a bound and does not follow the load.
    EXPECT_LE(queue.length(), 2 * few.queues.at(name).length() + 4) << name;
  }
  EXPECT_LE(many.queues.at("worker tasks").length(), 16);
  EXPECT_GT(many.queues.at("worker tasks").length(), 8) << "it was a flood";
}

/// That the meters would show it: without a bound on open clocks a queue does follow the load.
TEST(PsQueues, WithoutABoundOnOpenClocksAQueueGrows) {
  const auto tasks = [](int clocks) {
    return run_flood({.clocks = clocks, .most = 1'000'000, .links = kNarrow}).queues.at("worker tasks").length();
  };
  EXPECT_GT(tasks(240), 2 * tasks(60));
}

/// Of what the link carries: a push ends when its last part is acknowledged, a pull when its last part is there.
TEST(PsQueues, PushAndPullTakeFourFifthsOfALinksBandwidth) {
  constexpr double kBytesPerSecond = 20e6;
  constexpr std::uint64_t kKeys = 1 << 20;  // 8 MB of doubles: 0.4 s
  double push_s = 0, pull_s = 0;
  comm::run_thread_mailboxes(
      3, {.latency = 200us, .bytes_per_second = kBytesPerSecond, .credit_bytes = 64 << 20},
      [&](comm::Mailbox& mailbox) {
        if (mailbox.address() == 0) {
          Manager manager({.address = 0, .servers = {1}, .workers = {2}});
          return manage(mailbox, manager);
        }
        if (mailbox.address() == 1) {
          Server server({.address = 1, .keys = kKeys}, make_sgd_rule());
          serve(mailbox, server, 0);
          return;
        }
        Client client(mailbox, {.address = 2, .keys = kKeys, .part_bytes = 1 << 20});
        const std::vector<double> gradient(kKeys, 1.0);
        const auto seconds = [](const auto& body) {
          const auto begin = std::chrono::steady_clock::now();
          body();
          return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        };
        client.take(client.pull({{{0, 1}}}));  // the view is here
        auto values = to_bytes(std::span(gradient));
        push_s = seconds([&] { client.wait(client.push({{{0, kKeys}}, std::move(values), 0.1})); });
        pull_s = seconds([&] { client.take(client.pull({{{0, kKeys}}})); });
        client.leave();
      });
  const double least = 8.0 * kKeys / kBytesPerSecond;
  EXPECT_LE(push_s, least / 0.8);
  EXPECT_LE(pull_s, least / 0.8);
  EXPECT_GE(push_s, 0.99 * least) << "or it was not all sent";
}

TEST(PsQueues, ClocksGoByFasterTheLessTheyWaitOnLinksWithJitter) {
  constexpr comm::ThreadMail kJittered{.latency = 300us, .jitter = 900us, .seed = 5};
  const auto run = [&](std::uint64_t tau) { return run_flood({.clocks = 120, .tau = tau, .links = kJittered}); };
  const FloodQueues sequential = run(0), bounded = run(3), eventual = run(kEventual);
  EXPECT_EQ(sequential.most_stale, 0u);
  EXPECT_LE(bounded.most_stale, 3u);
  EXPECT_GT(eventual.most_stale, 3u);
  EXPECT_GT(bounded.clocks_per_second, 1.5 * sequential.clocks_per_second);
  EXPECT_GT(eventual.clocks_per_second, bounded.clocks_per_second);
}

}  // namespace
}  // namespace trireme::ps
