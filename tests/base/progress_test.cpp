#include "trireme/base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace trireme {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

class ProgressLine : public testing::Test {
 protected:
  Progress::Output output(bool terminal) {
    return {.stream = &stream_, .terminal = terminal, .columns = 60, .now = [this] { return now_; }};
  }
  std::ostringstream stream_;
  Progress::Clock::time_point now_ = Progress::Clock::time_point(1h);
};

TEST_F(ProgressLine, OnATerminalIsRewrittenInPlaceAtMostTenTimesASecond) {
  {
    Progress progress("train", 1000, "step", output(true));
    for (int step = 0; step <= 200; ++step, now_ += 10ms) progress.update(step, "loss 2.5");
  }
  const std::string text = stream_.str();
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << "only the end ends the line";
  EXPECT_TRUE(text.ends_with('\n'));
  EXPECT_NEAR(static_cast<double>(std::ranges::count(text, '\r')), 21, 1);
  EXPECT_THAT(text, HasSubstr("\rtrain  100/1000 steps  10%  100 steps/s  9 s left  loss 2.5\x1b[K"));
}

TEST_F(ProgressLine, IsCutToTheTerminal) {
  Progress progress("train", 1000, "step", output(true));
  progress.update(0, std::string(200, 'x') + "end");
  EXPECT_THAT(stream_.str(), Not(HasSubstr("end")));
  EXPECT_EQ(stream_.str().size(), 1 + 59 + 3u);
}

TEST_F(ProgressLine, ElsewhereIsALineEveryTenSecondsAndOneAtTheEnd) {
  {
    Progress progress("train", 25, "step", output(false));
    for (int step = 1; step <= 25; ++step, now_ += 1s) progress.update(step);
  }
  EXPECT_EQ(stream_.str(),
            "train  11/25 steps  44%  1 steps/s  14 s left\n"
            "train  21/25 steps  84%  1 steps/s  4 s left\n"
            "train  25/25 steps  100%  0.96 steps/s  in 25 s\n");
}

TEST_F(ProgressLine, AResumedRunIsNotTakenForAFastOne) {
  Progress progress("train", 1000, "step", output(true));
  progress.update(900);
  now_ += 10s;
  progress.update(910);
  EXPECT_THAT(stream_.str(), HasSubstr("1 steps/s  1m30s left"));
}

TEST_F(ProgressLine, WithoutATotalThereIsNoPercentage) {
  Progress progress("index", 0, "document", output(true));
  progress.update(0);
  now_ += 2s;
  progress.update(5000);
  EXPECT_THAT(stream_.str(), HasSubstr("\rindex  5000 documents  2.50k documents/s\x1b[K"));
}

TEST_F(ProgressLine, WhatNeverBeganSaysNothing) {
  { const Progress progress("train", 10, "step", output(true)); }
  EXPECT_EQ(stream_.str(), "");
}

}  // namespace
}  // namespace trireme
