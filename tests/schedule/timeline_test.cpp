// Measured executions: what a calibration makes of them, and the picture of both.
#include "trireme/schedule/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/wiring.h"

namespace trireme::schedule {
namespace {

Schedule small_table(std::string_view kind = "1f1b", int ranks = 2, int chunks = 1) {
  return complete(build(kind, {.ranks = ranks, .micros = 4, .chunks_per_rank = chunks}));
}

/// A machine whose passes take what it likes, whose messages take `link`, and whose updates begin together: executed
/// instruction by instruction, without the replay.
Timeline executed(const Schedule& table, double link, double noise = 0) {
  const Wiring wiring = wire(table);
  std::vector<std::vector<double>> arrivals(wiring.channels.size());
  Timeline timeline{.ranks = std::vector<std::vector<Span>>(table.ranks.size())};
  std::vector<double> now(table.ranks.size(), 0);
  std::size_t done = 0, all = 0;
  for (const auto& list : table.ranks) all += list.size();
  const auto at_update = [&](std::size_t rank) {
    const std::size_t i = timeline.ranks[rank].size();
    return i < table.ranks[rank].size() && table.ranks[rank][i].op == Op::kOptimizerStep;
  };
  while (done < all) {
    const std::size_t before = done;
    bool together = true;
    double last = 0;
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      together = together && at_update(rank);
      last = std::max(last, now[rank]);
    }
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      while (timeline.ranks[rank].size() < table.ranks[rank].size()) {
        const std::size_t i = timeline.ranks[rank].size();
        const Instruction& it = table.ranks[rank][i];
        const double start = now[rank];
        if (it.op == Op::kOptimizerStep) {
          if (!together) break;
          now[rank] = last + 2;
        } else if (is_wait(it.op)) {
          const TransferId& message = wiring.messages[rank][i];
          const auto& channel = arrivals[static_cast<std::size_t>(message.channel)];
          if (channel.size() <= static_cast<std::size_t>(message.sequence)) break;
          now[rank] = std::max(now[rank], channel[static_cast<std::size_t>(message.sequence)]);
        } else if (is_send(it.op)) {
          auto& channel = arrivals[static_cast<std::size_t>(wiring.messages[rank][i].channel)];
          channel.push_back(std::max(now[rank], channel.empty() ? 0.0 : channel.back()) + link);
        } else if (!is_transfer(it.op) && it.op != Op::kReduceGradients) {
          now[rank] += (it.op == Op::kForward ? 1.0 : 2.0) + 0.25 * static_cast<double>(rank) + noise * it.micro;
        }
        timeline.ranks[rank].push_back({it, start, now[rank]});
        ++done;
      }
    }
    TRIREME_CHECK(done > before, "nobody can go on");
  }
  return timeline;
}

TEST(Calibration, PredictsAnExecutionFromOthers) {
  for (const char* kind : {"gpipe", "1f1b", "zb-h1", "interleaved"}) {
    for (const double link : {0.0, 0.3}) {
      const Schedule table = small_table(kind, 3, std::string(kind) == "interleaved" ? 2 : 1);
      const Timeline measured = executed(table, link, 0.01);
      Calibration calibration(table);
      for (int i = 0; i < 3; ++i) calibration.add(measured);
      EXPECT_NEAR(replay(table, calibration.options()).makespan, measured.seconds(), 0.02 * measured.seconds())
          << kind << " " << link;
      EXPECT_LE(replay(table, calibration.ideal()).makespan, measured.seconds() + 1e-9);
      if (link == 0) {
        EXPECT_NEAR(replay(table, calibration.ideal()).makespan, measured.seconds(), 1e-9) << kind;
      }
    }
  }
}

TEST(Calibration, LeavesOutRareDelays) {
  const Schedule table = small_table();
  const Timeline fine = executed(table, 0.1);
  Timeline disturbed = fine;
  for (auto& spans : disturbed.ranks) {
    for (Span& span : spans) span.start += 50, span.end += 50;
    spans.back().end += 50;
  }
  Calibration calibration(table);
  calibration.add(fine);
  calibration.add(disturbed);
  calibration.add(fine);
  EXPECT_NEAR(replay(table, calibration.options()).makespan, fine.seconds(), 0.02 * fine.seconds());
}

TEST(Replay, UpdatesCanWaitForAllRanks) {
  const Schedule table = small_table();
  const auto time_of = [](int rank, const Instruction& it) {
    if (it.op == Op::kOptimizerStep) return rank == 0 ? 1.0 : 5.0;
    return it.op == Op::kForward || it.op == Op::kBackward ? 1.0 : 0.0;
  };
  const double apart = replay(table, {.time_of = time_of}).makespan;
  const double together = replay(table, {.time_of = time_of, .updates_together = true}).makespan;
  // Rank 1 ends its passes a backward before rank 0.
  EXPECT_DOUBLE_EQ(together, apart + 1);
}

TEST(MeasuredTable, SurvivesItsFile) {
  const Schedule table = small_table("interleaved", 2, 2);
  const MeasuredTable measured{table, {executed(table, 0.2), executed(table, 0.3)}};
  const MeasuredTable again = read_measured(to_json(measured));
  EXPECT_EQ(again.schedule, table);
  ASSERT_EQ(again.executions.size(), 2U);
  EXPECT_EQ(again.executions[1].seconds(), measured.executions[1].seconds());
  EXPECT_THROW(read_measured("{}"), ConfigError);
  EXPECT_THROW(read_measured("{\"schedule\": 3"), ConfigError);
  MeasuredTable short_file = measured;
  short_file.executions[0].ranks[1].pop_back();
  EXPECT_THROW(read_measured(to_json(short_file)), ConfigError);
}

TEST(Comparison, ShowsMeasuredAboveReplayedOnOneScale) {
  const Schedule table = small_table();
  const Timeline measured = executed(table, 0.2);
  Calibration calibration(table);
  calibration.add(measured);
  ReplayOptions options = calibration.options();
  options.keep_spans = true;
  const Timing predicted = replay(table, options);
  const std::string svg = to_svg(Comparison{table, measured, predicted});
  EXPECT_LT(svg.find("measured, in ms"), svg.find("replayed, in ms"));
  EXPECT_THAT(svg, testing::HasSubstr("measured / replayed = 1.0"));
}

}  // namespace
}  // namespace trireme::schedule
