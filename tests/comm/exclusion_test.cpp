#include "trireme/comm/exclusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <iostream>
#include <numeric>
#include <thread>

#include "tests/errors.h"
#include "trireme/base/random.h"
#include "trireme/comm/exclusion_check.h"

namespace trireme::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

/// Entries of each rank.
class EveryRun : public testing::TestWithParam<std::vector<int>> {};

TEST_P(EveryRun, IsSafeInTheOrderOfClocksAndEndsWithNobodyWaiting) {
  const ExclusionReport report = explore_exclusion({.entries = GetParam()});
  EXPECT_EQ(report.problem, "") << testing::PrintToString(report.steps);
  EXPECT_TRUE(report.complete);
  EXPECT_GT(report.ends, 0);
  const int others = static_cast<int>(GetParam().size()) - 1;
  EXPECT_EQ(report.messages, 3 * others * std::accumulate(GetParam().begin(), GetParam().end(), 0));
  std::cout << report.states << " states\n";
}

INSTANTIATE_TEST_SUITE_P(Entries, EveryRun,
                         testing::Values(std::vector{2}, std::vector{1, 1}, std::vector{2, 2}, std::vector{3, 3},
                                         std::vector{1, 1, 0}, std::vector{2, 1, 0}, std::vector{2, 2, 0},
                                         std::vector{1, 1, 1}));

TEST(Exclusion, ChannelsThatLoseTheirOrderBreakIt) {
  const ExclusionReport report = explore_exclusion({.entries = {2, 2}, .ordered = false});
  EXPECT_FALSE(report.complete);
  EXPECT_NE(report.problem, "");
  EXPECT_GT(report.steps.size(), 3U) << "and the steps that lead there";
}

TEST(Exclusion, EnteringWithoutHearingFromEveryoneIsFound) {
  const ExclusionReport report = explore_exclusion({.entries = {1, 1}, .may_enter = &ExclusionProcess::is_first});
  EXPECT_THAT(report.problem, AllOf(HasSubstr("enters while"), HasSubstr("is inside")));
}

TEST(Exclusion, ARankThatNeverEntersIsFoundAsADeadlock) {
  const ExclusionReport report =
      explore_exclusion({.entries = {1, 1}, .may_enter = [](const ExclusionProcess& process) {
                           return process.rank() != 1 && process.may_enter();
                         }});
  EXPECT_THAT(report.problem, HasSubstr("rank 1 still waits"));
}

TEST(Exclusion, TiesOfClocksGoToTheLowerRank) {
  ExclusionProcess zero(0, 2), one(1, 2);
  const auto from_zero = zero.request(), from_one = one.request();
  EXPECT_EQ(from_zero[0].clock, from_one[0].clock);
  const auto answer_of_one = one.receive(from_zero[0]), answer_of_zero = zero.receive(from_one[0]);
  zero.receive(answer_of_one[0]);
  one.receive(answer_of_zero[0]);
  EXPECT_TRUE(zero.may_enter());
  EXPECT_FALSE(one.may_enter());
  EXPECT_EQ(one.waits_for(), std::vector<int>{0});
  zero.enter();
  one.receive(zero.release()[0]);
  EXPECT_TRUE(one.may_enter());
}

TEST(Exclusion, EightRanksWithRandomDelaysEnterOneByOneInOrder) {
  constexpr int kRanks = 8, kEntries = 5;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Random random(seed, "delays");
    std::vector<ExclusionProcess> processes;
    for (int rank = 0; rank < kRanks; ++rank) processes.emplace_back(rank, kRanks);
    std::vector<std::vector<ExclusionMessage>> channels(kRanks * kRanks);
    std::vector<int> left(kRanks, kEntries);
    std::int64_t sent = 0;
    ClockStamp last{};
    const auto send = [&](const ExclusionProcess::Messages& messages) {
      for (const ExclusionMessage& message : messages) {
        channels[static_cast<std::size_t>(message.from * kRanks + message.to)].push_back(message);
        ++sent;
      }
    };
    int inside = 0, entered = 0;
    for (std::uint64_t draw = 0; draw < 200'000; ++draw) {
      const auto pick = random.below(kRanks * kRanks + kRanks, draw);
      if (pick < kRanks * kRanks) {
        auto& channel = channels[pick];
        if (channel.empty()) continue;
        const ExclusionMessage message = channel.front();
        channel.erase(channel.begin());
        send(processes[static_cast<std::size_t>(message.to)].receive(message));
        continue;
      }
      const std::size_t rank = pick - kRanks * kRanks;
      ExclusionProcess& process = processes[rank];
      if (process.inside()) {
        --inside;
        send(process.release());
      } else if (process.may_enter()) {
        ASSERT_EQ(inside++, 0);
        ASSERT_LT(last, *process.requested());
        last = *process.requested();
        process.enter();
        ++entered;
      } else if (!process.requested() && left[rank] > 0) {
        --left[rank];
        send(process.request());
      }
    }
    EXPECT_EQ(entered, kRanks * kEntries);
    EXPECT_EQ(sent, 3 * (kRanks - 1) * kRanks * kEntries);
  }
}

TEST(MutualExclusion, LetsOneThreadInAtATimeOverTheControlPlane) {
  constexpr int kRanks = 3, kEntries = 4;
  auto planes = make_local_control(kRanks);
  std::atomic<int> inside = 0, entries = 0, most = 0, unlocked = 0;
  int counted = 0;  // guarded by nothing but the exclusion
  std::atomic<std::int64_t> messages = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      MutualExclusion exclusion(*planes[static_cast<std::size_t>(rank)], "convert");
      for (int i = 0; i < kEntries; ++i) {
        exclusion.lock(30s);
        most = std::max<int>(most, ++inside);
        const int before = counted;
        std::this_thread::sleep_for(1ms);
        counted = before + 1;
        ++entries;
        --inside;
        exclusion.unlock();
      }
      ++unlocked;
      while (unlocked < kRanks) std::this_thread::sleep_for(1ms);  // all acknowledge until the last is done
      messages += exclusion.messages_sent();
      EXPECT_EQ(exclusion.entries(), kEntries);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(counted, kRanks * kEntries);
  EXPECT_EQ(messages, 3 * (kRanks - 1) * kRanks * kEntries);
}

TEST(MutualExclusion, NamesTheRanksThatDoNotAnswer) {
  auto planes = make_local_control(3);
  MutualExclusion zero(*planes[0], "download"), two(*planes[2], "download");  // rank 1 has none
  EXPECT_THAT(message_of<CommError>([&] { zero.lock(300ms); }),
              AllOf(HasSubstr("\"download\""), HasSubstr("rank 1 has not answered")));
  EXPECT_THAT(message_of<CommError>([&] { zero.lock(300ms); }), HasSubstr("earlier lock timed out"));
}

}  // namespace
}  // namespace trireme::comm
