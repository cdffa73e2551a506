// Other programs on the cores of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/observe/contention.h"

namespace trireme::observe {
namespace {

using testing::HasSubstr;

TEST(Contention, ReadsTheKernelsCounters) {
  EXPECT_DOUBLE_EQ(*busy_seconds("cpu  100 20 30 4000 500 6 7 8 0 0\ncpu0 1 2 3 4\n", 100), 1.63);
  EXPECT_FALSE(busy_seconds("", 100));
  EXPECT_FALSE(busy_seconds("intr 5 6 7 8 9 10 11", 100));
  EXPECT_FALSE(busy_seconds("cpu  100 20", 100));
  if (const auto now = cpu_times()) {
    EXPECT_GT(now->machine, 0);
    EXPECT_GT(now->process, 0);
    EXPECT_GE(now->machine, now->process - 0.1);
  }
}

/// Looks every 6 s at a machine where this process takes `own` cores and others take `others`.
std::string after(CpuContention& watch, int looks, double own, double others) {
  std::string said;
  for (int i = 0; i <= looks; ++i) {
    const double wall = 6.0 * i;
    said += watch.note(CpuTimes{.wall = wall, .machine = wall * (own + others), .process = wall * own});
  }
  return said;
}

TEST(Contention, IsSaidOnceWhenItLasts) {
  CpuContention two(2, 1, 1, 2);
  EXPECT_EQ(after(two, 2, 1, 1), "") << "not sure yet";
  CpuContention sure(2, 1, 1, 2);
  const std::string said = after(sure, 20, 1, 1);
  EXPECT_THAT(said, HasSubstr("other programs use 1.0 of the 2 cores that 2 threads compute on"));
  EXPECT_THAT(said, HasSubstr("train.omp_wait_policy = \"passive\""));
  EXPECT_EQ(said.find("other programs"), said.rfind("other programs"));
}

TEST(Contention, IsNoneWhereCoresSufficeOrNobodyWaits) {
  CpuContention alone(2, 1, 1, 2), room(4, 1, 1, 16), single(1, 1, 1, 1), ranks(2, 4, 1, 8), threads(2, 4, 4, 8);
  EXPECT_EQ(after(alone, 20, 1.9, 0.2), "");
  EXPECT_EQ(after(room, 20, 3.9, 8), "");
  EXPECT_EQ(after(single, 20, 0.5, 0.5), "") << "one thread waits for nobody";
  EXPECT_EQ(after(ranks, 20, 1.9, 5.7), "") << "the others are its own ranks, as processes";
  EXPECT_EQ(after(threads, 20, 7.6, 0.3), "") << "and as threads";
}

TEST(Contention, NothingIsSaidWhereTheMachineDoesNotTell) {
  CpuContention watch(2, 1, 1, 2);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(watch.note({}), "");
}

}  // namespace
}  // namespace trireme::observe
