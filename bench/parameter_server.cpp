// bench/parameter_server.cpp -- what parameter servers add to the mailboxes under them.
//
//   build/release/bench/parameter_server
//
// Push and pull of 64 MB beside the same bytes posted bare, on threads and over UCX; clocks a second of sequential,
// bounded and eventual consistency on links whose delays differ from message to message. Beside times stands the
// processor time of all threads: where everything runs on few cores that is what decides, whatever else they do.
// Started as four ranks by a launcher, each has one mailbox and pushes and pulls go from the last one's host to the
// others': slow_link_servers.sh does that between two hosts.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "trireme/base/error.h"
#include "trireme/comm/control.h"
#include "trireme/comm/launch.h"
#include "trireme/comm/mailbox_threads.h"
#include "trireme/comm/process.h"
#include "trireme/comm/ucx_plugin/ucx_plugin.h"
#include "trireme/ps/consistency.h"
#include "trireme/ps/node.h"

namespace {

using namespace trireme;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kKeys = 16 << 20;  // 64 MB of fp32
constexpr std::size_t kBytes = kKeys * 4, kPart = 4 << 20;
constexpr int kRounds = 9;
constexpr std::uint32_t kBareTag = 1;

double seconds_of(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Of all threads of this process.
double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Times {
  double bare = 0, push = 0, pull = 0;     // medians of seconds
  double push_share = 0, pull_share = 0;   // of the bare mail's bandwidth beside it, medians
  double least_share = 0, most_share = 0;  // of all rounds
  double bare_cpu = 0, push_cpu = 0, pull_cpu = 0;
};

/// Addresses: 0 the manager, 1 the server, 2 the worker, 3 takes bare mail in parts of the same size. A round has all
/// three, one directly after the other: what else the machine does is beside each of them.
void exchange(comm::Mailbox& mailbox, Times& times) {
  const int me = mailbox.address();
  if (me == 0) {
    ps::Manager manager({.address = 0, .servers = {1}, .workers = {2}});
    return ps::manage(mailbox, manager);
  }
  if (me == 1) {
    ps::Server server({.address = 1, .keys = kKeys, .type = ps::ValueType::kF32}, ps::make_sgd_rule());
    ps::serve(mailbox, server, 0);
    return;
  }
  if (me == 3) {
    for (int round = 0; round < 1 + kRounds; ++round) {
      for (std::size_t at = 0; at < kBytes; at += kPart) mailbox.receive(kBareTag);
      mailbox.post(2, kBareTag, 0, {});
    }
    return;
  }
  std::vector<std::byte> values(kBytes, std::byte{1});
  const auto send_bare = [&] {
    for (std::size_t at = 0; at < kBytes; at += kPart)
      mailbox.post(3, kBareTag, 0, std::span(values).subspan(at, kPart));
    mailbox.receive(kBareTag);
  };
  ps::Client client(mailbox, {.address = 2, .keys = kKeys, .type = ps::ValueType::kF32});
  const std::vector<ps::Segment> all{{0, kKeys}};
  send_bare();
  client.wait(client.push({all, values, 0.1}));  // first touch of the server's memory
  std::vector<double> bare, push, pull, push_shares, pull_shares, bare_cpu, push_cpu, pull_cpu;
  const auto measure = [](std::vector<double>& seconds, std::vector<double>& cpu, const std::function<void()>& body) {
    const double before = processor_seconds();
    seconds.push_back(seconds_of(body));
    cpu.push_back(processor_seconds() - before);
  };
  for (int round = 0; round < kRounds; ++round) {
    measure(bare, bare_cpu, send_bare);
    std::vector<std::byte> pushed = values;
    measure(push, push_cpu, [&] { client.wait(client.push({all, std::move(pushed), 0.1})); });
    measure(pull, pull_cpu, [&] { client.take(client.pull({all})); });
    push_shares.push_back(bare.back() / push.back());
    pull_shares.push_back(bare.back() / pull.back());
  }
  client.leave();
  times = {.bare = median(bare),
           .push = median(push),
           .pull = median(pull),
           .push_share = median(push_shares),
           .pull_share = median(pull_shares),
           .least_share = std::min(*std::ranges::min_element(push_shares), *std::ranges::min_element(pull_shares)),
           .most_share = std::max(*std::ranges::max_element(push_shares), *std::ranges::max_element(pull_shares)),
           .bare_cpu = median(bare_cpu),
           .push_cpu = median(push_cpu),
           .pull_cpu = median(pull_cpu)};
}

void print_times(const char* name, const Times& times) {
  const double mb = kBytes / 1e6;
  fmt::print(
      "{:<8} bare {:7.0f} MB/s   push {:7.0f} MB/s ({:3.0f} %)   pull {:7.0f} MB/s ({:3.0f} %)   of {} rounds {:.0f} "
      "to {:.0f} %\n",
      name, mb / times.bare, mb / times.push, 100 * times.push_share, mb / times.pull, 100 * times.pull_share, kRounds,
      100 * times.least_share, 100 * times.most_share);
  fmt::print("{:<8} processor time: bare {:.0f} ms, push {:.0f} ms ({:.0f} %), pull {:.0f} ms ({:.0f} %)\n", "",
             1e3 * times.bare_cpu, 1e3 * times.push_cpu, 100 * times.bare_cpu / times.push_cpu, 1e3 * times.pull_cpu,
             100 * times.bare_cpu / times.pull_cpu);
}

/// As one of four processes: the last one has the worker.
int run_rank(const comm::Launch& launch) {
  static constexpr int kAddresses[] = {0, 1, 3, 2};
  if (launch.ranks != 4) throw ConfigError("this benchmark is of four ranks", "start four");
  comm::run_process_rank(launch,
                         [](comm::Rank& rank) {
                           const int me = kAddresses[rank.rank()];
                           Times times;
                           {
                             const auto mailbox = comm::make_process_mailbox(rank.control(), {.address = me});
                             exchange(*mailbox, times);
                           }
                           if (me == 2) print_times("ranks", times);
                           rank.world().barrier().wait();
                         },
                         {});
  return 0;
}

void run_ucx(Times& times) {
  auto planes = comm::make_local_control(4);
  std::vector<std::thread> threads;
  for (int me = 0; me < 4; ++me) {
    threads.emplace_back([&, me] {
      const auto mailbox = comm::make_ucx_mailbox(*planes[static_cast<std::size_t>(me)], {.address = me});
      exchange(*mailbox, times);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Clocks a second of one worker that pushes small gradients.
double clocks_per_second(std::uint64_t tau) {
  constexpr int kClocks = 300;
  constexpr std::uint64_t kFew = 1000;
  double rate = 0;
  comm::run_thread_mailboxes(
      4, {.latency = std::chrono::microseconds(200), .jitter = std::chrono::microseconds(400), .seed = 5},
      [&](comm::Mailbox& mailbox) {
        const int me = mailbox.address();
        if (me == 0) {
          ps::Manager manager({.address = 0, .servers = {1, 2}, .workers = {3}, .copies = 2});
          ps::manage(mailbox, manager);
        } else if (me < 3) {
          ps::Server server({.address = me, .keys = kFew}, ps::make_sgd_rule());
          ps::serve(mailbox, server, 0);
        } else {
          ps::Client client(mailbox, {.address = 3, .keys = kFew});
          ps::BoundedDelay delay(tau, 32);
          std::map<std::uint64_t, ps::Worker::TaskId> open;
          const std::vector<double> gradient(kFew, 1e-3);
          const double seconds = seconds_of([&] {
            for (int i = 0; i < kClocks; ++i) {
              while (!delay.may_begin()) {
                client.wait(open.at(delay.awaited() > 0 ? delay.awaited() : open.begin()->first));
                std::erase_if(open, [&](const auto& entry) {
                  if (!client.finished(entry.second)) return false;
                  delay.done(entry.first);
                  return true;
                });
              }
              const std::uint64_t clock = delay.begin();
              open[clock] = client.push({{{0, kFew}}, ps::to_bytes(std::span(gradient)), 0.1});
            }
            for (const auto& [clock, task] : open) client.wait(task);
          });
          client.leave();
          rate = kClocks / seconds;
        }
      });
  return rate;
}

}  // namespace

int main(int count, char** words) {
  trireme::bench::Arguments app("Push and pull of parameter servers beside bare mail; clocks a second by consistency");
  if (const auto status = app.parse(count, words)) return *status;
  if (const comm::Launch launch = comm::detect_launch(); launch.kind != comm::Launch::Kind::kSingle)
    return run_rank(launch);
  Times threads, ucx, link;
  // A link of 1 Gbit/s and 0.1 ms, emulated: what a network carries, whatever this machine's memory does.
  comm::run_thread_mailboxes(
      4, {.latency = std::chrono::microseconds(100), .bytes_per_second = 125e6, .credit_bytes = 256 << 20},
      [&](comm::Mailbox& mailbox) { exchange(mailbox, link); });
  print_times("1 Gbit/s", link);
  comm::run_thread_mailboxes(4, {.credit_bytes = 256 << 20},
                             [&](comm::Mailbox& mailbox) { exchange(mailbox, threads); });
  print_times("threads", threads);
  try {
    comm::load_ucx();
    run_ucx(ucx);
    print_times("ucx", ucx);
  } catch (const ConfigError& error) {
    fmt::print("ucx      {}\n", error.message());
  }
  const double sequential = clocks_per_second(0), bounded = clocks_per_second(4),
               eventual = clocks_per_second(ps::kEventual);
  fmt::print(
      "links of 0.2 ms and 0.4 ms jitter, 2 copies: sequential {:.0f} clocks/s, tau 4 {:.0f} ({:.1f}x), eventual "
      "{:.0f} ({:.1f}x)\n",
      sequential, bounded, bounded / sequential, eventual, eventual / sequential);
  return 0;
}
