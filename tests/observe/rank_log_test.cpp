// What ranks measure of their steps comes back by rank, and a resumed run goes on where it stood.
#include "trireme/observe/rank_log.h"

#include <gmock/gmock.h>

#include <cmath>
#include <thread>

#include "tests/observe/run_folder.h"

namespace trireme::observe {
namespace {

class ARankLog : public RunFolder {};

void tell(EventSink& sink, int rank, std::int64_t step, double seconds) {
  sink.metric({.name = "step/seconds", .value = seconds, .step = step, .rank = rank});
}

TEST_F(ARankLog, IsReadBackByRankAndStep) {
  for (int rank = 0; rank < 3; ++rank) {
    RankLog log(folder_, rank, 3, std::nullopt);
    for (std::int64_t step = 1; step <= 2; ++step) {
      tell(log, rank, step, static_cast<double>(rank) + static_cast<double>(step) / 3);
      log.metric({.name = "memory/peak_bytes", .value = 1e9, .step = step, .rank = rank});
      tell(log, rank + 1, step, 99);  // another rank's
      log.end_step(step);
    }
  }
  const auto ranks = read_ranks(folder_);
  ASSERT_EQ(ranks.size(), 3U);
  for (const auto& [rank, steps] : ranks) {
    ASSERT_EQ(steps.size(), 2U);
    EXPECT_EQ(steps[1].step, 2);
    EXPECT_EQ(steps[1].metrics.at("step/seconds"), rank + 2.0 / 3);
    EXPECT_EQ(steps[1].metrics.at("memory/peak_bytes"), 1e9);
  }
}

TEST_F(ARankLog, WritesAStepWhenItEnds) {
  RankLog log(folder_, 0, 1, std::nullopt);
  tell(log, 0, 1, 0.5);
  tell(log, 0, 2, 0.25);  // of a step that runs ahead
  EXPECT_TRUE(read_ranks(folder_)[0].empty());
  log.end_step(1);
  ASSERT_EQ(read_ranks(folder_)[0].size(), 1U);
  log.end_step(2);
  EXPECT_EQ(read_ranks(folder_)[0].size(), 2U);
}

TEST_F(ARankLog, CutsBackWhatAResumedRunDoesAgainAlsoOfRanksThatAreGone) {
  for (int rank = 0; rank < 3; ++rank) {
    RankLog log(folder_, rank, 3, std::nullopt);
    for (std::int64_t step = 1; step <= 4; ++step) {
      tell(log, rank, step, 1);
      log.end_step(step);
    }
  }
  const RankLog first(folder_, 0, 2, 2), second(folder_, 1, 2, 2);
  for (const auto& [rank, steps] : read_ranks(folder_)) {
    ASSERT_EQ(steps.size(), 2U) << "rank " << rank;
    EXPECT_EQ(steps.back().step, 2);
  }
}

TEST_F(ARankLog, KeepsNumbersThatAreNotFinite) {
  RankLog log(folder_, 0, 1, std::nullopt);
  tell(log, 0, 1, std::nan(""));
  log.end_step(1);
  EXPECT_TRUE(std::isnan(read_ranks(folder_)[0].at(0).metrics.at("step/seconds")));
}

TEST_F(ARankLog, LeavesOutLinesThatAreDamaged) {
  write(folder_ / "ranks" / "00000.jsonl",
        "{\"step\":1,\"metrics\":{\"a\":2}}\nrubbish\n{\"step\":3}\n{\"step\":4,\"metr");
  const auto ranks = read_ranks(folder_);
  ASSERT_EQ(ranks.at(0).size(), 1U);
  EXPECT_EQ(ranks.at(0)[0].metrics.at("a"), 2);
}

TEST_F(ARankLog, TakesMetricsFromManyThreads) {
  RankLog log(folder_, 0, 1, std::nullopt);
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&log, thread] {
        const std::string name = fmt::format("layer/{}", thread);
        for (std::int64_t step = 1; step <= 100; ++step) log.metric({.name = name, .value = 1, .step = step});
      });
    }
  }
  log.end_step(100);
  const auto ranks = read_ranks(folder_);
  ASSERT_EQ(ranks.at(0).size(), 100U);
  EXPECT_EQ(ranks.at(0)[50].metrics.size(), 4U);
}

TEST(EventFanOut, TellsEverySinkAndWantsWhatOneOfThemWants) {
  struct Counting final : EventSink {
    bool wants_spans() const noexcept override { return wants; }
    void span(const Span&) noexcept override { ++spans; }
    void metric(const Metric& metric) noexcept override { sum += metric.value; }
    bool wants = false;
    int spans = 0;
    double sum = 0;
  };
  Counting a, b;
  EventFanOut both({&a, &b});
  EXPECT_FALSE(both.wants_spans());
  b.wants = true;
  EXPECT_TRUE(both.wants_spans());
  both.metric({.name = "x", .value = 2});
  both.span({});
  EXPECT_EQ(a.sum + b.sum, 4);
  EXPECT_EQ(a.spans + b.spans, 2);
}

}  // namespace
}  // namespace trireme::observe
