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
    EXPECT_EQ(ranks_text(replicated_1f1b(ones, 6)), ranks_text(one_f_one_b().build({.ranks = ranks, .micros = 6})));
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
          const Report report = check(complete(replicated_1f1b(ranks, micros)));
          EXPECT_TRUE(report.fine()) << a << b << c << " " << micros << ": "
                                     << (report.fine() ? "" : report.faults.front());
        }
        if (least > 1) {
          EXPECT_THROW(replicated_1f1b(ranks, least - 1), ConfigError);
        }
      }
    }
  }
}

/// A stage that takes twice as long on two ranks: as many micros a time as where all take the same.
TEST(Replicated, ASlowStageOnTwoRanksKeepsUp) {
  const auto seconds = [](std::vector<int> ranks, int micros, int slow_chunk) {
    const Schedule table = complete(replicated_1f1b(ranks, micros));
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

}  // namespace
}  // namespace trireme::schedule
