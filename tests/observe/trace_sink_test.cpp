#include "trireme/observe/trace_sink.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tests/observe/run_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"

namespace trireme::observe {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class Trace : public RunFolder {};

Span sample_span(int rank, int lane) {
  const auto now = Span::Clock::now();
  return {.name = "all_reduce",
          .category = "comm",
          .detail = "4 \"MiB\"",
          .rank = rank,
          .lane = lane,
          .begin = now,
          .end = now + 1500us};
}

TEST_F(Trace, HoldsSpansByRankAndLaneAndMetricsAsCounters) {
  {
    TraceSink sink(folder_ / "trace.json");
    sink.span(sample_span(3, 1));
    sink.span(sample_span(3, 1));
    sink.metric({.name = "train/loss", .value = 2.5, .step = 7, .rank = 3});
    sink.metric({.name = "train/loss", .value = std::nan(""), .step = 8, .rank = 3});
  }
  const auto events = nlohmann::json::parse(read(folder_ / "trace.json"));
  ASSERT_EQ(events.size(), 6U) << "three names, two spans, one counter";
  EXPECT_EQ(events[0]["args"]["name"], "rank 3");
  EXPECT_EQ(events[2]["args"]["name"], "calls 1");
  const auto& span = events[3];
  EXPECT_EQ(span["ph"], "X");
  EXPECT_EQ(span["pid"], 3);
  EXPECT_EQ(span["tid"], 1);
  EXPECT_EQ(span["dur"], 1500.0);
  EXPECT_EQ(span["args"]["detail"], "4 \"MiB\"");
  EXPECT_EQ(events[5]["args"]["value"], 2.5);
  EXPECT_EQ(events[5]["pid"], 3) << "a counter of its rank";
}

TEST_F(Trace, TakesSpansFromManyThreads) {
  {
    TraceSink sink(folder_ / "trace.json");
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        for (int i = 0; i < 1000; ++i) sink.span(sample_span(rank, 0));
      });
    }
  }
  EXPECT_EQ(nlohmann::json::parse(read(folder_ / "trace.json")).size(), 4 * 1000U + 4 * 3U);
}

TEST_F(Trace, EndsWithOneWarningWhenItCannotGrow) {
  std::vector<std::string> said;
  divert_log([&](std::string_view line) { said.emplace_back(line); });
  {
    TraceSink sink(folder_ / "trace.json");
    rlimit old{};
    getrlimit(RLIMIT_FSIZE, &old);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{.rlim_cur = 1000, .rlim_max = old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 3000; ++i) sink.span(sample_span(0, 0));
    setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, handler);
  }
  divert_log(nullptr);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_THAT(said[0], HasSubstr("the trace ends here"));
}

TEST_F(Trace, SaysWhereItCannotBeMade) { EXPECT_THROW(TraceSink(folder_ / "no" / "trace.json"), IoError); }

}  // namespace
}  // namespace trireme::observe
