// HetPipe: waves that are pushed once each, weights no older than the paper's bounds, and virtual workers that wait for
// each other no more than the clock distance says.
#include "trireme/schedule/waves.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace trireme::schedule {
namespace {

Schedule waves(int stages, int minibatches, int steps, int distance, int workers = 1) {
  return build(
      "hetpipe",
      {.ranks = stages, .micros = minibatches, .steps = steps, .clock_distance = distance, .virtual_workers = workers});
}

TEST(Waves, HaveThePapersBounds) {
  EXPECT_EQ((WaveLaw{.minibatches = 4, .clock_distance = 0}.local_bound()), 3);
  EXPECT_EQ((WaveLaw{.minibatches = 4, .clock_distance = 0}.global_bound()), 6);
  EXPECT_EQ((WaveLaw{.minibatches = 4, .clock_distance = 4}.global_bound()), 22);
  EXPECT_EQ((WaveLaw{.minibatches = 1, .clock_distance = 0}.global_bound()), 0) << "synchronous";
}

TEST(Waves, MinibatchesMeetTheBoundsAndNeverMore) {
  for (int minibatches = 1; minibatches <= 6; ++minibatches) {
    for (int distance = 0; distance <= 5; ++distance) {
      StalenessMonitor monitor{.law = {.minibatches = minibatches, .clock_distance = distance}};
      const WaveLaw& law = monitor.law;
      for (int minibatch = 0; minibatch < 20 * minibatches; ++minibatch) {
        monitor.met(minibatch, law.version(minibatch), law.own_until(minibatch));
        EXPECT_LE(law.version(minibatch) * minibatches, law.own_until(minibatch)) << "own updates of pulled waves";
      }
      EXPECT_EQ(monitor.local, law.local_bound());
      EXPECT_EQ(monitor.global, law.global_bound());
    }
  }
}

TEST(Waves, AMonitorRefusesWeightsThatAreTooOld) {
  StalenessMonitor monitor{.law = {.minibatches = 4, .clock_distance = 0}};
  EXPECT_THROW(monitor.met(11, 1, 8), InternalError) << "the last minibatch of wave 2 without wave 1";
  EXPECT_THROW(monitor.met(10, 1, 6), InternalError) << "without its own minibatch 6";
}

TEST(Waves, AreTheTextbookTable) {
  EXPECT_EQ(ranks_text(waves(2, 2, 3, 0)),
            "rank 0: F0 F1 B0 F2 B1 G O F3 B2 F4 B3 G O F5 B4 B5 G O\n"
            "rank 1: F0 B0 F1 B1 G F2 B2 O F3 B3 G F4 B4 O F5 B5 G O\n");
  EXPECT_EQ(ranks_text(waves(2, 1, 2, 0)),
            "rank 0: F0 B0 G O F1 B1 G O\n"
            "rank 1: F0 B0 G O F1 B1 G O\n")
      << "one minibatch and no distance: synchronous";
  EXPECT_EQ(ranks_text(build("hetpipe:1", {.ranks = 1, .micros = 1, .steps = 4})),
            "rank 0: F0 B0 G F1 B1 G O F2 B2 G O F3 B3 G O O\n");
}

TEST(Waves, CanRunForEveryDistanceAndNumberOfVirtualWorkers) {
  for (int workers = 1; workers <= 3; ++workers) {
    for (int stages = 1; stages <= 4; ++stages) {
      for (int minibatches = 1; minibatches <= 5; ++minibatches) {
        for (int distance = 0; distance <= 3; ++distance) {
          const Schedule table = waves(stages, minibatches, 6, distance, workers);
          const Report report = check(table);
          ASSERT_TRUE(report.fine()) << workers << stages << minibatches << distance << report.faults.front();
          EXPECT_EQ(report.delay, minibatches == 1 ? distance : std::min(5, distance + 1)) << "in waves";
          for (const auto& list : table.ranks)
            EXPECT_EQ(std::ranges::count(list, Op::kReduceGradients, &Instruction::op), 6) << "one push a wave";
          for (const int copies : report.peak_versions) EXPECT_LE(copies, 1 + std::min(stages, minibatches));
        }
      }
    }
  }
}

TEST(Waves, ATableThatPullsTooLateIsRefused) {
  Schedule table = waves(1, 2, 3, 0);
  auto& list = table.ranks[0];
  const auto pull = std::ranges::find(list, Op::kOptimizerStep, &Instruction::op);
  std::rotate(pull, pull + 1, pull + 2);  // after the forward that needs it
  const Report report = check(table);
  ASSERT_FALSE(report.fine());
  EXPECT_NE(report.faults.front().find("by the law \"waves\""), std::string::npos) << report.faults.front();
}

TEST(Waves, AreReadBackWithTheirDistance) {
  const Schedule table = add_transfers(waves(3, 2, 4, 2, 2));
  EXPECT_EQ(parse(to_text(table)), table);
  EXPECT_EQ(from_json(to_json(table)), table);
  EXPECT_THROW(build("hetpipe:x", {.ranks = 2, .micros = 2}), ConfigError);
  EXPECT_EQ(build("hetpipe:2", {.ranks = 2, .micros = 2}).clock_distance, 2);
}

/// Two virtual workers that are slow in turn: with a distance each has time to catch up.
TEST(Waves, ADistanceHidesStragglersThatTakeTurns) {
  const auto makespan = [](int distance) {
    const int waves_run = 24, minibatches = 2, workers = 2;
    const Schedule table = waves(2, minibatches, waves_run, distance, workers);
    return replay(table, {.time_of =
                              [&](int rank, const Instruction& it) {
                                if (it.op != Op::kForward && it.op != Op::kBackward) return 0.0;
                                const int wave = it.micro / (minibatches * workers), worker = rank / 2;
                                return wave % 2 == worker ? 3.0 : 1.0;
                              }})
        .makespan;
  };
  EXPECT_LT(makespan(2), 0.85 * makespan(0));
  EXPECT_LE(makespan(4), makespan(2) + 1e-9);
}

}  // namespace
}  // namespace trireme::schedule
