// Stages on several ranks: tables that check, and that are as fast as their slowest stage allows.
#include "trireme/schedule/replicated.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace trireme::schedule {
namespace {

TEST(Replicated, IsPlain1F1BOnOneRankAStage) {
  for (const int ranks : {1, 2, 4}) {
    const std::vector<int> ones(static_cast<std::size_t>(ranks), 1);
    EXPECT_EQ(ranks_text(replicated_1f1b(stage_ranks(ones), 6)),
              ranks_text(one_f_one_b().build({.ranks = ranks, .micros = 6})));
  }
}

TEST(Replicated, TablesAreFineForAllSmallShapes) {
  for (int a = 1; a <= 4; ++a) {
    for (int b = 1; b <= 3; ++b) {
      for (int c = 0; c <= 3; ++c) {
        std::vector<int> ranks{a, b};
        if (c > 0) ranks.push_back(c);
        const int least = *std::ranges::max_element(ranks);
        for (int micros = least; micros <= 13; ++micros) {
          const Report report = check(complete(replicated_1f1b(stage_ranks(ranks), micros)));
          EXPECT_TRUE(report.fine()) << a << b << c << " " << micros << ": "
                                     << (report.fine() ? "" : report.faults.front());
        }
        if (least > 1) {
          EXPECT_THROW(replicated_1f1b(stage_ranks(ranks), least - 1), ConfigError);
        }
      }
    }
  }
}

/// A stage that takes twice as long on two ranks: as many micros a time as where all take the same.
TEST(Replicated, ASlowStageOnTwoRanksKeepsUp) {
  const auto seconds = [](std::vector<int> ranks, int micros, int slow_chunk) {
    const Schedule table = complete(replicated_1f1b(stage_ranks(ranks), micros));
    return replay(table, {.time_of =
                              [&](int, const Instruction& it) {
                                if (it.op != Op::kForward && it.op != Op::kBackward) return 0.0;
                                return it.chunk == slow_chunk ? 2.0 : 1.0;
                              }})
        .makespan;
  };
  // Between micros of a full pipeline: the difference of 40 more of them.
  EXPECT_NEAR((seconds({2, 1}, 60, 0) - seconds({2, 1}, 20, 0)) / 40, 2, 0.05);
  EXPECT_NEAR((seconds({1, 2, 1}, 60, 1) - seconds({1, 2, 1}, 20, 1)) / 40, 2, 0.05);
  EXPECT_NEAR((seconds({1, 1, 1}, 60, 1) - seconds({1, 1, 1}, 20, 1)) / 40, 4, 0.05);
}

/// PipeDream's 1F1B-RR: every micro goes back over the ranks it came by, with the weights of its forward.
TEST(ReplicatedPipeDream, TablesAreFineAndKeepTheirStagesBusy) {
  for (const std::vector<int>& ranks : {std::vector<int>{1, 1}, {2, 1}, {1, 2}, {3, 1}, {2, 2}, {1, 3, 2}, {4}}) {
    const int least = *std::ranges::max_element(ranks);
    for (int micros = least; micros <= least + 3; ++micros) {
      const Schedule table = complete(replicated_pipedream(stage_ranks(ranks), micros, 5));
      const Report report = check(table);
      ASSERT_TRUE(report.fine()) << table.name << " " << micros << ": " << report.faults.front();
      EXPECT_EQ(table.steps(), 5);
      for (int chunk = 0; chunk < table.chunks(); ++chunk) {
        for (int micro = 0; micro < table.micros; ++micro)
          EXPECT_EQ(report.uses.forward(chunk, micro), report.uses.backward(chunk, micro));
      }
    }
  }
  // With a rank a stage and a micro a step it is PipeDream.
  EXPECT_EQ(ranks_text(complete(replicated_pipedream(stage_ranks(std::vector{1, 1, 1}), 1, 7))),
            ranks_text(complete(build("pipedream", {.ranks = 3, .micros = 1, .steps = 7}))));
  // Three ranks for a stage that takes three times as long: no rank idles once the pipeline is full.
  const auto seconds = [](int steps) {
    const Schedule table = complete(replicated_pipedream(stage_ranks(std::vector{3, 1}), 6, steps));
    return replay(table, {.time_of = [](int, const Instruction& it) {
                    if (it.op != Op::kForward && it.op != Op::kBackward) return 0.0;
                    return it.chunk == 0 ? 3.0 : 1.0;
                  }});
  };
  EXPECT_LT(steady_bubble(seconds(10), seconds(20)), 0.02);
}

TEST(Replicated, NamesRanksThatBelongToNoStageOrToTwo) {
  EXPECT_THROW(replicated_1f1b({{0, 1}, {1}}, 4), ConfigError);
  EXPECT_THROW(replicated_1f1b({{0}, {2}}, 4), ConfigError);
  EXPECT_THROW(replicated_1f1b({{0}, {}}, 4), ConfigError);
}

}  // namespace
}  // namespace trireme::schedule
