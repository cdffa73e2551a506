#include "trireme/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

#include "trireme/base/error.h"

/// Counts how often it is formatted.
struct Counting {
  int& times;
};
template <>
struct fmt::formatter<Counting> : fmt::formatter<int> {
  auto format(const Counting& counting, fmt::format_context& context) const {
    return fmt::formatter<int>().format(++counting.times, context);
  }
};

namespace trireme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class Log : public testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::kInfo);
    divert_log([this](std::string_view line) { lines_.emplace_back(line); });  // the sink calls it under its own lock
  }
  void TearDown() override {
    divert_log(nullptr);
    set_log_level(LogLevel::kInfo);
    set_process_rank(0, 1);
  }
  std::vector<std::string> lines_;
};

TEST_F(Log, ShowsItsLevelAndWhatIsAbove) {
  log_debug("too {}", "fine");
  log_info("said {}", 1);
  log_error("cried");
  set_log_level(LogLevel::kError);
  log_warn("not now");
  set_log_level(LogLevel::kOff);
  log_error("not even this");
  set_log_level(LogLevel::kTrace);
  log_trace("everything");
  EXPECT_THAT(lines_, ElementsAre("info said 1", "error cried", "trace everything"));
}

TEST_F(Log, WhatIsNotShownIsNotFormatted) {
  int formatted = 0;
  log_debug("{}", Counting{formatted});
  EXPECT_EQ(formatted, 0);
  log_info("{}", Counting{formatted});
  EXPECT_EQ(formatted, 1);
}

TEST_F(Log, OneRankNeedsNoPrefix) {
  log_info("alone");
  set_process_rank(3, 8);
  log_info("one of many");
  EXPECT_THAT(lines_, ElementsAre("info alone", "info [rank 3] one of many"));
}

TEST_F(Log, ThreadsThatAreRanksSpeakForThemselves) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([rank] {
      const ThreadRank speaker(rank, 3);
      log_info("here");
    });
  }
  for (auto& thread : threads) thread.join();
  log_info("main");
  EXPECT_THAT(lines_,
              UnorderedElementsAre("info [rank 0] here", "info [rank 1] here", "info [rank 2] here", "info main"));
}

TEST_F(Log, RanksNest) {
  const ThreadRank outer(1, 2);
  {
    const ThreadRank inner(5, 6);
    EXPECT_EQ(rank_prefix(), "[rank 5] ");
  }
  EXPECT_EQ(rank_prefix(), "[rank 1] ");
}

TEST_F(Log, BracesInATextAreOnlyText) {
  log_info("{}", "{not a field}");
  EXPECT_THAT(lines_, ElementsAre("info {not a field}"));
}

TEST_F(Log, LevelsAreReadByName) {
  EXPECT_EQ(parse_log_level("warn"), LogLevel::kWarn);
  try {
    (void)parse_log_level("inof");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("\"inof\""));
    EXPECT_THAT(error.message(), HasSubstr("did you mean \"info\"?"));
    EXPECT_THAT(error.hint(), HasSubstr("trace, debug, info, warn, error and off"));
  }
}

}  // namespace
}  // namespace trireme
