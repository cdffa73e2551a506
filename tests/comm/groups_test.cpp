// Splits, counters, works and progress in the background.
#include "trireme/comm/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/comm/outcomes.h"
#include "tests/comm/reference.h"

namespace trireme::comm {
namespace {

using testing::ElementsAre;

std::vector<int> members(const Group& group) {
  std::vector<int> out;
  for (int r = 0; r < group.size(); ++r) out.push_back(group.world_rank(r));
  return out;
}

std::string use(Group& group, std::uint64_t seed = 1) {
  for (const std::size_t count : {3, 5000}) {
    std::string wrong = try_case(group, {.op = Op::kAllReduce, .count = count, .seed = seed});
    if (!wrong.empty()) return wrong;
  }
  return try_case(group, {.op = Op::kAllGather, .algorithm = Algorithm::kRing, .count = 10, .seed = seed});
}

TEST(Split, MakesGroupsOfColoursInTheOrderOfKeys) {
  run_ranks(
      6,
      [](Rank& self) {
        const auto group = self.world().split(self.rank() % 2, -self.rank(), "halves");
        ASSERT_NE(group, nullptr);
        EXPECT_EQ(group->name(), "halves");
        if (self.rank() % 2 == 0) {
          EXPECT_THAT(members(*group), ElementsAre(4, 2, 0));
        } else {
          EXPECT_THAT(members(*group), ElementsAre(5, 3, 1));
        }
        EXPECT_EQ(group->world_rank(group->rank()), self.rank());
        EXPECT_EQ(use(*group), "");
      },
      test_options());
}

TEST(Split, KeepsTheOrderOfRanksWithEqualKeysAndLeavesOutColourMinusOne) {
  run_ranks(
      5,
      [](Rank& self) {
        const auto group = self.world().split(self.rank() == 2 ? -1 : 7, 0, "without 2");
        if (self.rank() == 2) {
          EXPECT_EQ(group, nullptr);
        } else {
          EXPECT_THAT(members(*group), ElementsAre(0, 1, 3, 4));
          EXPECT_EQ(use(*group), "");
        }
        EXPECT_EQ(self.world().split(-1, 0, "nobody"), nullptr);
        const auto alone = self.world().split(self.rank(), 0, "alone");
        EXPECT_EQ(alone->size(), 1);
        EXPECT_EQ(use(*alone), "");
        EXPECT_EQ(use(self.world()), "");
      },
      test_options());
}

TEST(Split, CanBeSplitAgain) {
  run_ranks(
      8,
      [](Rank& self) {
        const auto half = self.world().split(self.rank() / 4, 0, "half");
        const auto quarter = half->split(half->rank() % 2, 0, "quarter");
        EXPECT_EQ(quarter->size(), 2);
        EXPECT_EQ(quarter->world_rank(0) + 2, quarter->world_rank(1));
        for (Group* group : {quarter.get(), half.get(), &self.world(), quarter.get()}) EXPECT_EQ(use(*group), "");
      },
      test_options());
}

TEST(Split, MakesManyGroupsThatDoNotDisturbEachOther) {
  run_ranks(
      4,
      [](Rank& self) {
        std::vector<std::unique_ptr<Group>> groups;
        for (int i = 0; i < 40; ++i) groups.push_back(self.world().split(0, i % 2 == 0 ? 0 : -self.rank(), "many"));
        std::vector<std::unique_ptr<Trial>> trials;
        std::vector<Work> works;
        for (std::size_t i = 0; i < groups.size(); ++i) {
          Group& group = *groups[(i * 7 + static_cast<std::size_t>(self.rank()) * 13) % groups.size()];
          const auto seed = static_cast<std::uint64_t>(&group == groups[0].get());
          const Case c{.op = Op::kAllReduce, .count = 500, .seed = seed};
          works.push_back(trials.emplace_back(std::make_unique<Trial>(c, 4, group.rank()))->start(group));
        }
        for (Work& work : works) work.wait();
        for (const auto& trial : trials) EXPECT_EQ(trial->verify(), "");
        // Gone and made anew.
        for (auto& group : groups) group = self.world().split(0, 0, "again");
        EXPECT_EQ(use(*groups.back()), "");
      },
      test_options());
}

TEST(Counters, CountCallsAndBytes) {
  constexpr std::size_t kCount = 6000;
  for (const int ranks : {1, 2, 3, 4, 6}) {
    run_ranks(
        ranks,
        [&](Rank& self) {
          Group& world = self.world();
          const auto p = static_cast<std::uint64_t>(ranks);
          const std::uint64_t bytes = 4 * kCount, part = bytes / p;
          const auto sent = [&](Op op, Algorithm algorithm, std::size_t count) {
            world.reset_counters();
            EXPECT_EQ(try_case(world, {.op = op, .algorithm = algorithm, .count = count}), "");
            const Counters counters = world.counters(op);
            EXPECT_EQ(counters.calls, 1u);
            EXPECT_EQ(counters.bytes, bytes);
            EXPECT_GT(counters.time.count(), 0);
            return counters.sent_bytes;
          };
          EXPECT_EQ(sent(Op::kAllReduce, Algorithm::kRing, kCount), 2 * (p - 1) * part);
          EXPECT_EQ(sent(Op::kReduceScatter, Algorithm::kRing, kCount / p), (p - 1) * part);
          EXPECT_EQ(sent(Op::kAllGather, Algorithm::kRing, kCount / p), (p - 1) * part);
          EXPECT_EQ(sent(Op::kAllToAll, Algorithm::kPairwise, kCount / p), (p - 1) * part);
          // Shared memory has no messages: what the best algorithm of messages would send.
          EXPECT_EQ(sent(Op::kAllReduce, Algorithm::kDirect, kCount), 2 * (p - 1) * part);
          EXPECT_EQ(sent(Op::kAllGather, Algorithm::kDirect, kCount / p), (p - 1) * part);
          EXPECT_EQ(sent(Op::kGather, Algorithm::kLinear, kCount / p), self.rank() == 0 ? 0 : part);
          EXPECT_EQ(sent(Op::kBroadcast, Algorithm::kLinear, kCount), self.rank() == 0 ? (p - 1) * bytes : 0);

          world.reset_counters();
          EXPECT_EQ(world.counters(Op::kAllReduce).calls, 0u);
          std::vector<float> out(10), in(10);
          Work received = world.recv({in.data(), 10, DType::kF32}, (self.rank() + 1) % ranks);
          world.send({out.data(), 10, DType::kF32}, (self.rank() + ranks - 1) % ranks).wait();
          received.wait();
          EXPECT_EQ(world.counters(Op::kSend).calls, 1u);
          EXPECT_EQ(world.counters(Op::kSend).sent_bytes, 40u);
          EXPECT_EQ(world.counters(Op::kRecv).bytes, 40u);
          EXPECT_EQ(world.counters(Op::kRecv).sent_bytes, 0u);
        },
        test_options());
  }
}

/// Little's law: when no call is under way, the time that calls were is what was integrated over time.
TEST(Works, AreMeteredFromTheirCallUntilTheyEnd) {
  using namespace std::chrono_literals;
  run_ranks(
      3,
      [](Rank& self) {
        Group& world = self.world();
        std::vector<float> first(5000, 1), second(70'000, 2);
        for (int i = 0; i < 20; ++i) {
          if (self.rank() == i % 3) std::this_thread::sleep_for(2ms);  // the others wait for this one
          Work one = world.all_reduce({first.data(), first.size(), DType::kF32}, Reduce::kMax);
          Work two = world.all_reduce({second.data(), second.size(), DType::kF32}, Reduce::kMax);
          if (i % 2 == 0) std::this_thread::sleep_for(1ms);
          two.wait();
          one.wait();
        }
        const QueueReading queue = self.queue();
        EXPECT_EQ(queue.arrivals, queue.departures) << "nothing is under way";
        EXPECT_GT(queue.arrivals, 0);
        EXPECT_GT(queue.sojourn, 0);
        EXPECT_NEAR(queue.occupancy, queue.sojourn, 1e-6 + 1e-3 * queue.sojourn);
        EXPECT_GT(queue.blocked, 0);
        EXPECT_LT(queue.blocked, queue.seconds);
      },
      test_options());
}

TEST(Counters, AreKeptForEachGroup) {
  run_ranks(
      2,
      [](Rank& self) {
        const auto other = self.world().split(0, 0, "other");
        self.world().reset_counters();
        for (int i = 0; i < 3; ++i) other->barrier().wait();
        EXPECT_EQ(other->counters(Op::kBarrier).calls, 3u);
        EXPECT_EQ(self.world().counters(Op::kBarrier).calls, 0u);
      },
      test_options());
}

TEST(Batch, IsOneWorkForSeveralCalls) {
  run_ranks(
      3,
      [](Rank& self) {
        std::vector<std::unique_ptr<Trial>> trials;
        Batch batch;
        for (std::uint64_t i = 0; i < 20; ++i) {
          const Case c{.op = i % 2 == 0 ? Op::kAllReduce : Op::kAllToAll, .count = 1 + i * 700, .seed = i};
          batch.add(trials.emplace_back(std::make_unique<Trial>(c, 3, self.rank()))->start(self.world()));
        }
        Work work = batch.commit();
        work.wait();
        EXPECT_TRUE(work.test());
        EXPECT_GT(work.elapsed().count(), 0);
        for (const auto& trial : trials) EXPECT_EQ(trial->verify(), "");
      },
      test_options());
}

TEST(Progress, IsMadeWhileNobodyWaits) {
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing, Algorithm::kHalvingDoubling}) {
    run_ranks(
        2,
        [&](Rank& self) {
          const Case c{.op = Op::kAllReduce, .algorithm = algorithm, .count = 1'000'000};
          Trial trial(c, 2, self.rank());
          Work work = trial.start(self.world());
          // Only looked at, never pushed on.
          const auto give_up = std::chrono::steady_clock::now() + kSoon;
          while (self.world().counters(Op::kAllReduce).calls == 0 && std::chrono::steady_clock::now() < give_up) {
            std::this_thread::sleep_for(1ms);
          }
          EXPECT_EQ(self.world().counters(Op::kAllReduce).calls, 1u) << cost::name(algorithm);
          EXPECT_TRUE(work.test());
          EXPECT_EQ(trial.verify(), "");
        },
        test_options());
  }
}

TEST(Progress, IsMadeWhenRanksOutnumberCores) {
#if defined(TRIREME_TSAN)
  constexpr int kReductions = 100;
#else
  constexpr int kReductions = 1000;
#endif
  const auto started = std::chrono::steady_clock::now();
  run_ranks(
      16,
      [](Rank& self) {
        for (int i = 0; i < kReductions; ++i) {
          int sum = self.rank() + i;
          self.world().all_reduce({&sum, 1, DType::kI32}, Reduce::kSum).wait();
          ASSERT_EQ(sum, 120 + 16 * i);
        }
      },
      test_options());
  EXPECT_LT(std::chrono::steady_clock::now() - started, 60s);
}

TEST(Ranks, RunTheirBodiesWithTheirNumbers) {
  std::atomic<int> mask{0};
  run_ranks(
      5,
      [&](Rank& self) {
        EXPECT_EQ(self.ranks(), 5);
        EXPECT_EQ(self.world().rank(), self.rank());
        EXPECT_EQ(self.world().size(), 5);
        mask |= 1 << self.rank();
      },
      test_options());
  EXPECT_EQ(mask, 31);
}

TEST(Ranks, ThatThrowWithoutTalkingHaveTheirErrorRethrown) {
  struct Special : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  EXPECT_THROW(run_ranks(
                   3,
                   [](Rank& self) {
                     if (self.rank() == 2) throw Special("mine");
                   },
                   test_options()),
               Special);
}

}  // namespace
}  // namespace trireme::comm
