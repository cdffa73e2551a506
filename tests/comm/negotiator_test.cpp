// Tensors that become ready in different orders on different ranks: the coordinator's table, and ranks that follow it.
#include "trireme/comm/negotiator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <random>

#include "trireme/base/error.h"
#include "trireme/comm/rank.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

ReadyTensor tensor(const std::string& name, std::size_t count = 10, DType type = DType::kF32) {
  return {.name = name, .type = type, .count = count};
}

TEST(Coordinator, SumsWhatAllRanksHaveInTheOrderOfTheLast) {
  Coordinator coordinator(2);
  const auto now = Coordinator::Clock::now();
  coordinator.report(0, {.ready = {tensor("a"), tensor("b"), tensor("c")}}, now);
  EXPECT_TRUE(coordinator.agree().sums.empty());
  coordinator.report(1, {.ready = {tensor("c"), tensor("a")}}, now);
  EXPECT_THAT(coordinator.agree().sums, ElementsAre(tensor("c"), tensor("a")));
  coordinator.report(1, {.ready = {tensor("b")}, .stops = true}, now);
  const Agreement last = coordinator.agree();
  EXPECT_THAT(last.sums, ElementsAre(tensor("b")));
  EXPECT_FALSE(last.stop);
  coordinator.report(0, {.ready = {}, .stops = true}, now);
  EXPECT_TRUE(coordinator.agree().stop);
}

TEST(Coordinator, RefusesWhatRanksHaveDifferently) {
  Coordinator coordinator(3);
  const auto now = Coordinator::Clock::now();
  coordinator.report(1, {.ready = {tensor("a", 10)}}, now);
  coordinator.report(0, {.ready = {tensor("a", 10)}}, now);
  coordinator.report(2, {.ready = {tensor("a", 12, DType::kF64)}}, now);
  const Agreement agreement = coordinator.agree();
  EXPECT_TRUE(agreement.sums.empty());
  ASSERT_EQ(agreement.refused.size(), 1U);
  EXPECT_EQ(agreement.refused[0].why, "rank 1 has 10 elements of f32, rank 2 has 12 elements of f64");
}

TEST(Coordinator, NamesTheRanksThatOthersWaitFor) {
  Coordinator coordinator(4);
  const auto start = Coordinator::Clock::now();
  coordinator.report(0, {.ready = {tensor("a")}}, start);
  coordinator.report(3, {.ready = {tensor("a")}}, start);
  EXPECT_TRUE(coordinator.stalled(start + 59s, 60s).empty());
  EXPECT_THAT(coordinator.stalled(start + 61s, 60s),
              ElementsAre("'a' has been ready for 61 s on ranks 0 and 3, but not on ranks 1 and 2"));
}

TEST(Negotiation, MessagesArriveAsTheyWereSent) {
  const ReadyReport report{.ready = {tensor("a b\n\"c\"", 7, DType::kBF16), tensor("", 0)}, .stops = true};
  EXPECT_EQ(report_from(to_bytes(report)), report);
  const Agreement agreement{.sums = {tensor("x"), tensor("y", 3, DType::kI64)},
                            .refused = {{"z", "because"}},
                            .forget = true,
                            .stop = true,
                            .fusion_bytes = 77,
                            .cycle = 5ms};
  EXPECT_EQ(agreement_from(to_bytes(agreement)), agreement);
}

TEST(Negotiation, FusesNeighboursOfOneTypeUpToTheThreshold) {
  const std::vector<ReadyTensor> list{
      tensor("a", 10),  tensor("b", 10), tensor("c", 10), tensor("d", 5, DType::kF64), tensor("e", 5, DType::kF64),
      tensor("f", 1000)};
  EXPECT_THAT(fuse(list, 80), ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3, 4), ElementsAre(5)));
  EXPECT_EQ(fuse(list, 1).size(), 6U);
  EXPECT_TRUE(fuse({}, 80).empty());
}

TEST(CycleTuner, StaysWithTheFastestSetting) {
  CycleTuner tuner({{1, 1ms}, {2, 1ms}, {3, 1ms}}, 3);
  const std::vector<double> speed{5, 9, 7};
  int changes = 0;
  for (int i = 0; i < 20; ++i) {
    const double noise = i % 3 == 1 ? 100 : 1;  // one sample of three is far off: the median does not mind
    changes += tuner.score(noise * speed[tuner.setting().fusion_bytes - 1], 1) ? 1 : 0;
  }
  EXPECT_TRUE(tuner.done());
  EXPECT_EQ(tuner.setting().fusion_bytes, 2U);
  EXPECT_EQ(changes, 3);
}

/// Tensors of each rank, filled with what their sum can be told from.
struct Tensors {
  std::vector<std::vector<double>> values;
  explicit Tensors(int count, int rank) {
    for (int i = 0; i < count; ++i) values.emplace_back(1 + i * 7 % 50, rank * 100 + i);
  }
  Buffer buffer(int i) {
    auto& of = values[static_cast<std::size_t>(i)];
    return {of.data(), of.size(), DType::kF64};
  }
  /// sum over ranks of (rank * 100 + i)
  bool summed(int i, int ranks) const {
    const double expected = 100.0 * ranks * (ranks - 1) / 2 + static_cast<double>(ranks) * i;
    return std::ranges::all_of(values[static_cast<std::size_t>(i)], [&](double value) { return value == expected; });
  }
};

std::string name_of(int i) { return "t" + std::to_string(i); }

TEST(Negotiator, RanksInAnyOrderAgree) {
  for (const int ranks : {1, 2, 5}) {
    for (const bool cache : {false, true}) {
      run_ranks(ranks, [&](Rank& rank) {
        constexpr int kTensors = 40;
        Negotiator sums(rank.world(), {.cycle = 100us, .cache = cache});
        std::mt19937 dice(static_cast<unsigned>(rank.rank()));
        for (int round = 0; round < 4; ++round) {
          Tensors tensors(kTensors, rank.rank());
          std::vector<int> order(kTensors);
          std::iota(order.begin(), order.end(), 0);
          std::ranges::shuffle(order, dice);
          for (const int i : order) sums.all_reduce(name_of(i), tensors.buffer(i));
          std::ranges::shuffle(order, dice);
          for (const int i : order) sums.wait(name_of(i));
          for (int i = 0; i < kTensors; ++i) EXPECT_TRUE(tensors.summed(i, ranks)) << i << " round " << round;
        }
        sums.finish();
        EXPECT_EQ(sums.counters().tensors, 4 * kTensors);
        EXPECT_EQ(sums.counters().cached > 0, cache);
      });
    }
  }
}

TEST(Negotiator, FusionMakesFewerCalls) {
  const auto calls = [](std::size_t fusion_bytes) {
    std::int64_t found = 0;
    run_ranks(3, [&](Rank& rank) {
      Negotiator sums(rank.world(), {.fusion_bytes = fusion_bytes, .cycle = 50ms});
      Tensors tensors(30, rank.rank());
      // The first cycle begins with the first tensor; all others are ready in the second.
      for (int i = 0; i < 30; ++i) sums.all_reduce(name_of(i), tensors.buffer(i));
      sums.finish();
      if (rank.rank() == 0) found = sums.counters().collectives;
    });
    return found;
  };
  EXPECT_EQ(calls(1), 30);
  EXPECT_LE(calls(std::size_t{1} << 20), 4);
}

/// Once a name is remembered, a bit says that it is ready: no more messages with names.
TEST(Negotiator, RemembersNames) {
  run_ranks(3, [](Rank& rank) {
    Negotiator sums(rank.world(), {.cycle = 100us});
    std::int64_t negotiated = 0;
    for (int round = 0; round < 5; ++round) {
      Tensors tensors(10, rank.rank());
      for (int i = 0; i < 10; ++i)
        sums.all_reduce(name_of((i * 3 + rank.rank()) % 10), tensors.buffer((i * 3 + rank.rank()) % 10));
      sums.wait_all();
      if (round == 0) negotiated = sums.counters().negotiated;
      EXPECT_EQ(sums.counters().negotiated, negotiated) << "round " << round;
      EXPECT_EQ(sums.counters().cached, 10 * round);
    }
    sums.finish();
  });
}

TEST(Negotiator, DifferentShapesAreAnErrorOnEveryRank) {
  for (const bool remembered : {false, true}) {
    std::mutex mutex;
    std::vector<std::string> messages;
    run_ranks(3, [&](Rank& rank) {
      Negotiator sums(rank.world(), {.cycle = 100us});
      std::vector<float> values(8, 1.0F);
      if (remembered) {
        sums.all_reduce("x", {values.data(), 6, DType::kF32});
        sums.wait_all();
      }
      sums.all_reduce("x", {values.data(), rank.rank() == 2 ? 5U : 6U, DType::kF32});
      try {
        sums.wait("x");
      } catch (const CommError& error) {
        const std::lock_guard lock(mutex);
        messages.push_back(error.message());
      }
      sums.all_reduce("y", {values.data(), 8, DType::kF32});  // and it goes on
      sums.finish();
    });
    ASSERT_EQ(messages.size(), 3U) << remembered;
    for (const std::string& message : messages)
      EXPECT_THAT(message, testing::AllOf(HasSubstr("'x'"), HasSubstr("6 elements"), HasSubstr("5 elements")));
  }
}

/// One rank goes on with other tensors, but never has "late": rank 0 says who, by name, remembered or not.
TEST(Negotiator, TellsWhoKeepsOthersWaiting) {
  for (const bool remembered : {false, true}) {
    std::vector<std::string> told;
    run_ranks(3, [&](Rank& rank) {
      Negotiator sums(rank.world(), {.cycle = 1ms, .stall = 30ms, .on_stall = [&](const std::string& line) {
                                       told.push_back(line);
                                     }});
      std::vector<float> late(4, 1.0F), other(4, 1.0F);
      if (remembered) {
        sums.all_reduce("late", {late.data(), 4, DType::kF32});
        sums.wait_all();
      }
      if (rank.rank() != 1) sums.all_reduce("late", {late.data(), 4, DType::kF32});
      for (int i = 0; i < 200; ++i) {
        sums.all_reduce("other", {other.data(), 4, DType::kF32});
        sums.wait("other");
      }
      if (rank.rank() == 1) sums.all_reduce("late", {late.data(), 4, DType::kF32});
      sums.finish();
    });
    ASSERT_EQ(told.size(), 1U) << remembered;
    EXPECT_THAT(told[0], testing::AllOf(HasSubstr("'late'"), HasSubstr("on ranks 0 and 2, but not on rank 1")));
  }
}

/// Which one is a matter of time; that the fastest is taken, CycleTuner's tests say.
TEST(Negotiator, AllRanksTakeTheSameSetting) {
  std::vector<CycleTuner::Setting> found(3);
  const std::vector<CycleTuner::Setting> tried{{1, 200us}, {1 << 20, 200us}, {1 << 20, 20ms}};
  run_ranks(3, [&](Rank& rank) {
    Negotiator sums(rank.world(), {.autotune = tried, .autotune_samples = 3});
    for (int round = 0; round < 30; ++round) {
      Tensors tensors(10, rank.rank());
      for (int i = 0; i < 10; ++i) sums.all_reduce(name_of(i), tensors.buffer(i));
      sums.wait_all();
    }
    sums.finish();
    found[static_cast<std::size_t>(rank.rank())] = sums.setting();
  });
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(found[0], found[2]);
  EXPECT_THAT(tried, testing::Contains(found[0]));
}

}  // namespace
}  // namespace trireme::comm
