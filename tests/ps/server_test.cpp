// Parameter servers over mailboxes of a seeded order: whatever the order and whoever dies, every push once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/ps/consistency.h"
#include "trireme/ps/node.h"

namespace trireme::ps {
namespace {

using testing::HasSubstr;

/// Addresses: 0 the manager, 1 to `servers` the servers, `late` more that join, then workers.
struct PsWorld {
  std::uint64_t keys = 97;
  ValueType type = ValueType::kF64;
  int servers = 3, late = 0, workers = 1, copies = 2;
  bool aggregate = false;
  std::function<std::unique_ptr<UpdateRule>()> rule = [] { return make_sgd_rule(); };
  std::map<int, int> dies = {};    // server -> after so many messages
  std::map<int, int> leaves = {};  // server -> likewise, in good order
  std::map<int, ServerCounters> counters = {};
  int first_worker() const { return 1 + servers + late; }
};

void post_message(comm::Mailbox& mailbox, int to, const Message& message) {
  mailbox.post(to, kMailTag, 0, encode(message));
}

void run_server_body(PsWorld& world, comm::Mailbox& mailbox, std::mutex& mutex) {
  const int me = mailbox.address();
  Server server(
      {.address = me, .keys = world.keys, .type = world.type, .aggregate = world.aggregate, .chunk_bytes = 64},
      world.rule());
  int messages = 0;
  bool told = false, died = false;
  const ServeReport report = serve(mailbox, server, 0, /*join=*/me > world.servers, [&](const Server&) {
    ++messages;
    if (const auto leaves = world.leaves.find(me);
        leaves != world.leaves.end() && messages >= leaves->second && !told) {
      told = true;
      post_message(mailbox, 0, {.kind = Message::Kind::kLeave, .node = me});
    }
    const auto dies = world.dies.find(me);
    died = dies != world.dies.end() && messages >= dies->second;
    return died;
  });
  // What a watcher would tell when the connection ends.
  if (died) post_message(mailbox, 0, {.kind = Message::Kind::kDied, .node = me});
  const std::lock_guard lock(mutex);
  world.counters[me] = report.counters;
}

void run_ps(PsWorld& world, std::uint64_t seed, const std::function<void(Client&, int worker)>& body,
            const Filters& filters = {}, int breaks_per_mille = 0) {
  std::mutex mutex;
  comm::run_mailboxes(
      1 + world.servers + world.late + world.workers,
      {.seed = seed, .limits = {.credit_bytes = 4096, .window_bytes = 1024}, .breaks_per_mille = breaks_per_mille},
      [&](comm::Mailbox& mailbox) {
        const int me = mailbox.address();
        if (me == 0) {
          ManagerOptions options{.address = 0, .copies = world.copies, .points = 16};
          for (int i = 1; i <= world.servers; ++i) options.servers.push_back(i);
          for (int i = 0; i < world.workers; ++i) options.workers.push_back(world.first_worker() + i);
          Manager manager(options);
          manage(mailbox, manager);
          // Servers that were still waiting to join are not in the view that is told to stop.
          for (int i = world.servers + 1; i <= world.servers + world.late; ++i)
            post_message(mailbox, i, {.kind = Message::Kind::kStop});
        } else if (me < world.first_worker()) {
          run_server_body(world, mailbox, mutex);
        } else {
          Client client(mailbox,
                        {.address = me, .keys = world.keys, .type = world.type, .filters = filters, .part_bytes = 200});
          body(client, me - world.first_worker());
          client.leave();
        }
      });
}

/// A gradient that depends on the weights, so that one that came twice, late or not at all would be seen.
template <typename T>
std::vector<T> gradient_at(const std::vector<T>& weights, std::uint64_t clock, int worker) {
  const Random random(clock * 31 + static_cast<std::uint64_t>(worker), "test/ps gradient");
  std::vector<T> gradient(weights.size());
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = static_cast<T>(random.normal(i)) + static_cast<T>(0.3) * weights[i];
  return gradient;
}

template <typename T>
std::vector<T> serial_sgd(std::uint64_t keys, int steps, bool adagrad) {
  std::vector<T> weights(keys, T{1}), sums(keys);
  for (int step = 1; step <= steps; ++step) {
    const std::vector<T> gradient = gradient_at(weights, static_cast<std::uint64_t>(step), 0);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (adagrad) {
        sums[i] += gradient[i] * gradient[i];
        weights[i] -= static_cast<T>(0.1) * gradient[i] / (std::sqrt(sums[i]) + static_cast<T>(1e-8));
      } else {
        weights[i] -= static_cast<T>(0.1) * gradient[i];
      }
    }
  }
  return weights;
}

/// One worker, sequential: the weights after so many steps.
template <typename T>
std::vector<T> sgd_on_servers(PsWorld& world, std::uint64_t seed, int steps, const Filters& filters = {},
                              int breaks_per_mille = 0) {
  world.type = sizeof(T) == 4 ? ValueType::kF32 : ValueType::kF64;
  std::vector<T> result;
  run_ps(
      world, seed,
      [&](Client& client, int) {
        const std::vector<Segment> all{{0, world.keys}};
        const std::vector<T> ones(world.keys, T{1});
        client.wait(client.push({all, to_bytes(std::span(ones)), 0, Message::Op::kAssign}));
        BoundedDelay delay(0);
        for (int step = 1; step <= steps; ++step) {
          EXPECT_TRUE(delay.may_begin());
          const std::uint64_t clock = delay.begin();
          const std::vector<T> weights = from_bytes<T>(client.take(client.pull({all})));
          const std::vector<T> gradient = gradient_at(weights, clock, 0);
          client.wait(client.push({all, to_bytes(std::span(gradient)), 0.1}));
          delay.done(clock);
        }
        result = from_bytes<T>(client.take(client.pull({all})));
      },
      filters, breaks_per_mille);
  return result;
}

TEST(ParameterServer, SequentialWithOneWorkerIsSerialSgdBitForBit) {
  for (const int copies : {1, 2, 3}) {
    PsWorld world{.copies = copies};
    EXPECT_EQ(sgd_on_servers<double>(world, 1, 8), serial_sgd<double>(world.keys, 8, false)) << copies;
    EXPECT_EQ(sgd_on_servers<float>(world, 2, 8), serial_sgd<float>(world.keys, 8, false)) << copies;
  }
  PsWorld adagrad{.rule = [] { return make_adagrad_rule(1e-8); }};
  EXPECT_EQ(sgd_on_servers<double>(adagrad, 3, 8), serial_sgd<double>(adagrad.keys, 8, true));
}

TEST(ParameterServer, KeyCachingAndLosslessCompressionChangeNoBit) {
  const std::vector<double> expected = serial_sgd<double>(97, 6, false);
  for (const bool caching : {false, true}) {
    for (const Encoding encoding : {Encoding::kRaw, Encoding::kZstd}) {
      PsWorld world;
      EXPECT_EQ(sgd_on_servers<double>(world, 4, 6, {.key_caching = caching, .encoding = encoding}), expected);
      std::int64_t hits = 0;
      for (const auto& [server, counters] : world.counters) hits += counters.key_hits;
      EXPECT_EQ(hits > 0, caching);
    }
  }
  PsWorld world;
  const std::vector<double> rounded = sgd_on_servers<double>(world, 4, 6, {.encoding = Encoding::kFixed16});
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(rounded[i], expected[i], 1e-3);
}

TEST(ParameterServer, AServerThatDiesUnderLoadChangesNoBit) {
  const std::vector<double> expected = serial_sgd<double>(97, 10, false);
  for (int seed = 0; seed < 24; ++seed) {
    PsWorld world{.dies = {{1 + seed % 3, 3 + seed * 2}}};
    EXPECT_EQ(sgd_on_servers<double>(world, static_cast<std::uint64_t>(seed), 10), expected) << "seed " << seed;
  }
}

TEST(ParameterServer, ServersComeAndGoUnderLoadAndOverBrokenConnections) {
  const std::vector<double> expected = serial_sgd<double>(97, 14, false);
  for (int seed = 0; seed < 8; ++seed) {
    PsWorld world{.servers = 3, .late = 2, .leaves = {{1 + seed % 3, 10}}};
    if (seed % 2 == 1) world.dies = {{1 + (seed + 1) % 3, 40}};
    EXPECT_EQ(sgd_on_servers<double>(world, static_cast<std::uint64_t>(100 + seed), 14, {}, seed % 4 == 0 ? 10 : 0),
              expected)
        << "seed " << seed;
  }
}

/// Whole numbers, so that sums are exact in every order: what arrives twice or never is seen.
TEST(ParameterServer, EveryWorkersPushesAreAppliedOnceWhateverDies) {
  constexpr int kClocks = 6;
  for (int seed = 0; seed < 12; ++seed) {
    PsWorld world{.keys = 61, .servers = 3, .workers = 3, .copies = 2, .rule = [] { return make_sum_rule(); }};
    if (seed % 3 > 0) world.dies = {{1 + seed % 3, 12 + seed}};
    std::mutex mutex;
    std::map<int, std::uint64_t> stale;
    std::vector<double> seen;
    std::atomic<int> done{0};
    const std::uint64_t tau = static_cast<std::uint64_t>(seed % 4);
    run_ps(world, static_cast<std::uint64_t>(seed), [&](Client& client, int worker) {
      BoundedDelay delay(seed % 4 == 3 ? kEventual : tau, 4);
      std::map<std::uint64_t, Worker::TaskId> open;
      for (int i = 0; i < kClocks; ++i) {
        while (!delay.may_begin()) {
          client.wait_for_mail();
          std::erase_if(open, [&](const auto& entry) {
            if (!client.finished(entry.second)) return false;
            delay.done(entry.first);
            return true;
          });
        }
        const std::uint64_t clock = delay.begin();
        // Parts of the keys, different ones each time: ranges split.
        const std::uint64_t from = (clock * 13 + static_cast<std::uint64_t>(worker) * 7) % 40;
        const std::vector<double> ones(20, std::pow(8.0, worker));
        open[clock] = client.push({{{from, from + 20}}, to_bytes(std::span(ones)), 0});
      }
      for (const auto& [clock, task] : open) client.wait(task);
      if (++done == 3) {
        const std::vector<double> weights = from_bytes<double>(client.take(client.pull({{{0, 61}}})));
        const std::lock_guard lock(mutex);
        seen = weights;
      }
      const std::lock_guard lock(mutex);
      stale[worker] = delay.most_stale();
    });
    std::vector<double> expected(61);
    for (int worker = 0; worker < 3; ++worker) {
      for (std::uint64_t clock = 1; clock <= kClocks; ++clock) {
        const std::uint64_t from = (clock * 13 + static_cast<std::uint64_t>(worker) * 7) % 40;
        for (std::uint64_t i = 0; i < 20; ++i) expected[from + i] += std::pow(8.0, worker);
      }
      if (seed % 4 < 3) {
        EXPECT_LE(stale[worker], tau) << "staleness above its bound";
      }
    }
    EXPECT_EQ(seen, expected) << "seed " << seed;
    for (const auto& [server, counters] : world.counters) {
      // Borders of pushes and of the server's own ranges, times workers: O(k m).
      EXPECT_LE(counters.most_clocks, counters.most_ranges * 3);
      EXPECT_LE(counters.most_ranges, 2 * kClocks * 3 + 3 * 16 * 2);
    }
  }
}

TEST(ParameterServer, AggregatedPushesGiveTheSameBitsInEveryOrder) {
  std::vector<double> first;
  for (int seed = 0; seed < 6; ++seed) {
    PsWorld world{.keys = 31, .servers = 2, .workers = 3, .copies = 2, .aggregate = true};
    if (seed > 3) world.dies = {{1, 20}};
    std::vector<double> result;
    std::mutex mutex;
    run_ps(world, static_cast<std::uint64_t>(seed), [&](Client& client, int worker) {
      std::vector<double> weights(31);
      for (std::uint64_t clock = 1; clock <= 5; ++clock) {
        const std::vector<double> gradient = gradient_at(weights, clock, worker);
        const auto pushed = client.push({{{0, 31}}, to_bytes(std::span(gradient)), 0.1});
        weights = from_bytes<double>(client.take(client.pull({{{0, 31}}}, {pushed})));
      }
      const std::lock_guard lock(mutex);
      result = weights;
    });
    if (first.empty()) first = result;
    EXPECT_EQ(result, first) << "seed " << seed;
  }
  std::vector<double> serial(31);
  for (std::uint64_t clock = 1; clock <= 5; ++clock) {
    std::vector<double> sum = gradient_at(serial, clock, 0);
    for (int worker = 1; worker < 3; ++worker) {
      const std::vector<double> gradient = gradient_at(serial, clock, worker);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    }
    for (std::size_t i = 0; i < serial.size(); ++i) serial[i] -= 0.1 * sum[i];
  }
  EXPECT_EQ(first, serial);
}

/// Without mailboxes: the messages themselves.
TEST(ParameterServer, CopiesOfPushesThatCameTogetherAreOneMessageAChain) {
  constexpr int kWorkers = 8;
  View view{.epoch = 1, .servers = {1, 2, 3}, .workers = {}, .copies = 3, .points = 1};
  std::map<int, std::unique_ptr<Server>> servers;
  for (const int each : view.servers) {
    servers[each] = std::make_unique<Server>(ServerOptions{.address = each, .keys = 64}, make_sum_rule());
    servers[each]->receive(0, {.kind = Message::Kind::kView, .view = view});
    servers[each]->take_outgoing();
  }
  const auto ranges = owned_by(place(view, 64), 1);
  ASSERT_FALSE(ranges.empty());
  const Segment keys = ranges.front().keys;
  const std::vector<double> ones(keys.size(), 1.0);
  for (int worker = 0; worker < kWorkers; ++worker) {
    Message push{.kind = Message::Kind::kPush, .epoch = 1, .task = 1, .node = 10 + worker, .segments = {keys}};
    encode_values(push, to_bytes(std::span(ones)), ValueType::kF64, Encoding::kRaw);
    servers[1]->receive(10 + worker, std::move(push));
  }
  EXPECT_TRUE(servers[1]->take_outgoing().empty()) << "nothing is acknowledged before the chain has it";
  servers[1]->flush();
  int copies = 0, acknowledged = 0;
  std::deque<std::pair<int, Outgoing>> mail;
  const auto collect = [&](int from) {
    for (Outgoing& outgoing : servers[from]->take_outgoing()) mail.emplace_back(from, std::move(outgoing));
  };
  collect(1);
  while (!mail.empty()) {
    auto [from, outgoing] = std::move(mail.front());
    mail.pop_front();
    if (outgoing.message.kind == Message::Kind::kCopy) ++copies;
    if (outgoing.message.kind == Message::Kind::kPushed) {
      ++acknowledged;
      EXPECT_EQ(copies, view.copies - 1);
    }
    if (!servers.contains(outgoing.to)) continue;
    servers[outgoing.to]->receive(from, std::move(outgoing.message));
    collect(outgoing.to);
  }
  EXPECT_EQ(copies, view.copies - 1) << "k - 1 messages, not (k - 1) x workers";
  EXPECT_EQ(acknowledged, kWorkers);
  for (const int each : view.servers) EXPECT_EQ(servers[each]->weights()[keys.begin], kWorkers);
}

TEST(ParameterServer, TwoServersLostWithTwoCopiesIsOneSentenceThatNamesTheRanges) {
  PsWorld world{.keys = 97, .servers = 3, .copies = 2, .dies = {{1, 9}, {2, 9}}};
  try {
    sgd_on_servers<double>(world, 3, 40);
    FAIL() << "keys are gone";
  } catch (const CommError& error) {
    EXPECT_THAT(error.message(), HasSubstr("are on no living server"));
    EXPECT_THAT(error.message(), HasSubstr("copies (2)"));
    EXPECT_THAT(error.hint(), HasSubstr("restore the job from its checkpoint"));
  }
}

TEST(ParameterServer, AServerThatHasForgottenAKeyListAsksForIt) {
  Server server({.address = 1, .keys = 10}, make_sum_rule());
  server.receive(0, {.kind = Message::Kind::kView, .view = {.epoch = 1, .servers = {1}, .workers = {5}}});
  server.take_outgoing();
  const std::vector<Segment> keys{{2, 4}};
  const std::vector<double> ones{1, 1};
  const auto push = [&](std::uint64_t task, bool has_keys) {
    Message message{.kind = Message::Kind::kPush,
                    .epoch = 1,
                    .task = task,
                    .node = 5,
                    .has_keys = has_keys,
                    .key_hash = hash_keys(keys)};
    if (has_keys) message.segments = keys;
    encode_values(message, to_bytes(std::span(ones)), ValueType::kF64, Encoding::kRaw);
    return message;
  };
  server.receive(5, push(1, false));
  server.receive(5, push(2, true));  // must not be taken for all before it
  auto out = server.take_outgoing();
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].message.kind, Message::Kind::kNeedKeys);
  EXPECT_EQ(server.weights()[2], 0);
  server.receive(5, push(1, true));
  EXPECT_EQ(server.take_outgoing().size(), 2u);
  EXPECT_EQ(server.weights()[2], 2);
  server.receive(5, push(2, false));  // again: it has been applied
  EXPECT_EQ(server.weights()[2], 2);
  EXPECT_EQ(server.counters().duplicates, 1);
}

TEST(PsMessage, GoesThereAndBackAndNoiseIsNoMessage) {
  Message message{.kind = Message::Kind::kCopy,
                  .op = Message::Op::kInstall,
                  .epoch = 9,
                  .task = 1ull << 40,
                  .node = -3,
                  .part = 7,
                  .sequence = 300,
                  .lane = 2,
                  .plane = 1,
                  .rate = -0.25,
                  .has_keys = false,
                  .key_hash = ~0ull,
                  .encoding = Encoding::kZstd,
                  .raw_bytes = 1000,
                  .segments = {{5, 9}, {100, 1u << 30}},
                  .chain = {3, 1, 2},
                  .clocks = {{{5, 9}, {{4, 17}, {8, 2}}}},
                  .view = {.epoch = 3, .servers = {1, 2}, .next = {1}, .workers = {9}, .copies = 2, .points = 4},
                  .values = std::vector<std::byte>(33, std::byte{7})};
  const std::vector<std::byte> bytes = encode(message);
  EXPECT_EQ(decode_message(bytes), message);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_FALSE(decode_message({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(cut)}));
  const Random random(3, "test/noise");
  for (std::uint64_t i = 0; i < 2000; ++i) {
    std::vector<std::byte> noise = bytes;
    noise[random.below(noise.size(), 2 * i)] = static_cast<std::byte>(random.bits(2 * i + 1));
    decode_message(noise);  // whatever it says, no byte beyond the end is read
  }
}

TEST(PsFilters, WhatIsHeldBackIsSentLaterAndNothingIsLost) {
  for (const Filters& filters : {Filters{.significant = 0.5}, Filters{.skip = 0.6, .seed = 2}}) {
    ResidualFilter filter(filters, 1, ValueType::kF64, 300);
    std::vector<double> given(300), arrived(300);
    std::uint64_t sent_keys = 0;
    const auto add = [&](const ResidualFilter::Sent& sent) {
      const std::vector<double> values = from_bytes<double>(sent.values);
      std::size_t at = 0;
      for (const Segment& segment : sent.segments) {
        for (std::uint64_t key = segment.begin; key < segment.end; ++key) arrived[key] += values.at(at++);
      }
      sent_keys += at;
      EXPECT_EQ(at, values.size());
    };
    for (std::uint64_t task = 1; task <= 20; ++task) {
      std::vector<double> values(200);
      for (std::size_t i = 0; i < 200; ++i) {
        values[i] = Random(task, "test/filter").uniform(i) * 0.25;
        given[50 + i] += values[i];
      }
      const Segment keys{50, 250};
      add(filter.apply(task, std::span(&keys, 1), to_bytes(std::span<const double>(values))));
    }
    EXPECT_GT(sent_keys, 0u);
    EXPECT_LT(sent_keys, 20u * 200 * 2 / 3);
    add(filter.flush());
    for (std::size_t i = 0; i < 300; ++i) EXPECT_NEAR(arrived[i], given[i], 1e-12);
  }
  EXPECT_EQ(kkt_active(10, std::vector<double>{0, 0, 2, 0}, std::vector<double>{0.1, 0.95, 0, -1.2}, 1.0, 0.1),
            (std::vector<Segment>{{11, 14}}));
}

}  // namespace
}  // namespace trireme::ps
