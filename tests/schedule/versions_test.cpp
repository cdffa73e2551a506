// The asynchronous kinds meet the weights that their papers say.
#include "trireme/schedule/versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"

namespace trireme::schedule {
namespace {

constexpr int kRanks[] = {1, 2, 3, 4, 5, 8};

TEST(PipeDream, GivesABackwardTheWeightsOfItsForward) {
  for (const int ranks : kRanks) {
    const Schedule schedule = build("pipedream", {.ranks = ranks, .micros = 24});
    const Report report = check(schedule);
    ASSERT_TRUE(report.fine());
    for (int chunk = 0; chunk < ranks; ++chunk) {
      // 1806.03377, section 3.3: stage i of n computes the gradient of t with w(t-n+1+i).
      for (int micro = 0; micro < 24; ++micro) {
        EXPECT_EQ(report.uses.forward(chunk, micro), std::max(0, micro - (ranks - 1 - chunk)));
        EXPECT_EQ(report.uses.backward(chunk, micro), report.uses.forward(chunk, micro));
      }
      EXPECT_EQ(report.peak_versions[static_cast<std::size_t>(chunk)], ranks - chunk);
    }
    EXPECT_EQ(report.delay, ranks - 1);
  }
}

TEST(PipeDream, WithVerticalSyncUsesOneVersionOnAllRanks) {
  for (const int ranks : kRanks) {
    const Report report = check(build("pipedream-vsync", {.ranks = ranks, .micros = 24}));
    ASSERT_TRUE(report.fine());
    for (int chunk = 0; chunk < ranks; ++chunk) {
      for (int micro = 0; micro < 24; ++micro) {
        EXPECT_EQ(report.uses.forward(chunk, micro), std::max(0, micro - (ranks - 1)));
        EXPECT_EQ(report.uses.backward(chunk, micro), std::max(0, micro - (ranks - 1)));
      }
    }
  }
}

TEST(PipeDream2BW, KeepsTwoVersionsAndIsOneUpdateLateEverywhere) {
  for (const int ranks : kRanks) {
    const int micros = ranks + 1;
    const Report report = check(build("pipedream-2bw", {.ranks = ranks, .micros = micros, .steps = 6}));
    ASSERT_TRUE(report.fine());
    for (int chunk = 0; chunk < ranks; ++chunk) {
      for (int micro = 0; micro < 6 * micros; ++micro) {
        EXPECT_EQ(report.uses.forward(chunk, micro), std::max(0, micro / micros - 1));
        EXPECT_EQ(report.uses.backward(chunk, micro), std::max(0, micro / micros - 1));
      }
    }
    EXPECT_THAT(report.peak_versions, testing::Each(2));
    EXPECT_EQ(report.delay, 1);
  }
}

TEST(SpecTrain, PredictsAsFarAheadAsThePaperSays) {
  for (const int ranks : kRanks) {
    const Schedule schedule = build("spectrain", {.ranks = ranks, .micros = 40});
    const Report report = check(schedule);
    ASSERT_TRUE(report.fine());
    const VersionUses present = present_versions(schedule);
    for (int chunk = 0; chunk < ranks; ++chunk) {
      // Where the pipeline is full and stays so until the micro is back.
      for (int micro = 2 * ranks; micro < 40 - 2 * ranks; ++micro) {
        EXPECT_EQ(report.uses.forward(chunk, micro) - present.forward(chunk, micro), chunk / 2 + ranks - chunk - 1);
        EXPECT_EQ(report.uses.backward(chunk, micro) - present.backward(chunk, micro), chunk / 2);
      }
    }
    EXPECT_EQ(report.delay, 0);
  }
}

TEST(XPipe, PredictsOnceAStepAndDirection) {
  for (const int ranks : kRanks) {
    for (const int mates : {1, 2, 3, 4, 8}) {
      const int steps = 3 + 5 * ranks / mates;
      const Schedule schedule = build("xpipe", {.ranks = ranks, .micros = mates, .steps = steps});
      const Report report = check(schedule);
      ASSERT_TRUE(report.fine());
      const VersionUses present = present_versions(schedule);
      const auto rounded = [&](int count) { return (2 * count + mates) / (2 * mates); };
      for (int chunk = 0; chunk < ranks; ++chunk) {
        for (int first = 0; first + 2 * ranks + mates < steps * mates; first += mates) {
          if (first < 2 * ranks) continue;
          // Micros to come back, from the pass of the bellwether until its step has been through chunk 0.
          const int after = mates - 1 + chunk / 2;
          EXPECT_EQ(report.uses.forward(chunk, first) - present.forward(chunk, first),
                    rounded(ranks - 1 - chunk + after));
          EXPECT_EQ(report.uses.backward(chunk, first) - present.backward(chunk, first), rounded(after));
          for (int mate = 1; mate < mates; ++mate) {
            EXPECT_EQ(report.uses.forward(chunk, first + mate), report.uses.forward(chunk, first));
            EXPECT_EQ(report.uses.backward(chunk, first + mate), report.uses.backward(chunk, first));
          }
        }
      }
      std::size_t predictions = 0;
      for (const Instruction& it : schedule.ranks[0]) predictions += it.op == Op::kPredictWeights;
      EXPECT_EQ(predictions, 2 * static_cast<std::size_t>(steps));
    }
  }
}

TEST(Stale, MeetsOtherWeightsOnTheWayBack) {
  const Report report = check(build("stale", {.ranks = 4, .micros = 16}));
  ASSERT_TRUE(report.fine());
  for (int micro = 4; micro < 16; ++micro) {
    EXPECT_EQ(report.uses.forward(0, micro), micro - 3);
    EXPECT_EQ(report.uses.backward(0, micro), micro);
  }
  EXPECT_THAT(report.peak_versions, testing::Each(1));
}

TEST(Versions, InTheTableOfPipeDream) {
  EXPECT_EQ(to_text(build("pipedream", {.ranks = 2, .micros = 3})),
            "name: pipedream\n"
            "micros: 3\n"
            "update-every: 1\n"
            "weights: stash\n"
            "chunks: 0 1\n"
            "rank 0: F0 F1 B0 G VS0 O F2 VL0 B1 VD0 G VS1 O VL1 B2 VD1 G O\n"
            "rank 1: F0 B0 G O F1 B1 G O F2 B2 G O\n");
}

}  // namespace
}  // namespace trireme::schedule
