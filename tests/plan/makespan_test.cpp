#include "trireme/plan/makespan.h"

#include <gtest/gtest.h>

#include "trireme/schedule/builders.h"
#include "trireme/schedule/interleave.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace trireme::plan {
namespace {

/// Chunks that differ, and recomputation.
std::vector<schedule::Times> unlike(int chunks) {
  std::vector<schedule::Times> times;
  for (int chunk = 0; chunk < chunks; ++chunk)
    times.push_back({.forward = 1 + 0.1 * (chunk % 3),
                     .backward_input = 1.2 + 0.3 * (chunk == chunks - 1),
                     .backward_weight = 0.7,
                     .recompute = 0.9});
  return times;
}

/// As schedule::replay() times the table with all of its transfers.
double by_replay(const schedule::Schedule& table, const std::vector<schedule::Times>& chunks, double link) {
  schedule::ReplayOptions options{.times = {.link = link}};
  options.time_of = [&](int, const schedule::Instruction& it) {
    if (it.op > schedule::Op::kForwardBackward) return 0.0;
    const schedule::Times& times = chunks[static_cast<std::size_t>(it.chunk)];
    if (it.op != schedule::Op::kForwardBackward) return times.of(it.op);
    return times.forward + chunks[static_cast<std::size_t>(it.back_chunk)].backward();
  };
  return schedule::replay(table, options).makespan;
}

TEST(Makespan, OfEveryKindIsWhatAReplaySays) {
  int seen = 0;
  for (const schedule::Kind& kind : schedule::kinds()) {
    for (const int ranks : {2, 4, 7, 8}) {
      for (const int micros : {1, 2, ranks, 2 * ranks, 5 * ranks}) {
        for (const bool recompute : {false, true}) {
          const schedule::Shape shape{
              .ranks = ranks, .micros = micros, .chunks_per_rank = kind.default_chunks, .recompute = recompute};
          if (!kind.refuses(shape).empty()) continue;
          const schedule::Schedule table = schedule::build(kind.name, shape);
          const std::vector<schedule::Times> chunks = unlike(table.chunks());
          for (const double link : {0.0, 0.05, 0.8, 3.0}) {
            EXPECT_DOUBLE_EQ(makespan(table, chunks, link), by_replay(table, chunks, link))
                << kind.name << " " << ranks << " ranks " << micros << " micros, link " << link;
            ++seen;
          }
        }
      }
    }
  }
  EXPECT_GT(seen, 1000);
}

/// Where rows of experts travel the planner has the table that runs, and its passes have their exchanges in them.
TEST(Makespan, PairsInPartsTakeWhatTheirReplaySays) {
  using namespace schedule;
  constexpr int kMixtures = 3;
  for (const char* kind : {"dualpipe", "dualpipe-v", "zb-v"}) {
    for (const double exchange : {0.0, 0.05, 1.0}) {
      const Schedule table = build(kind, {.ranks = 4, .micros = 10, .chunks_per_rank = 2});
      const double waits = 2 * kMixtures * exchange;
      const Times inclusive{.forward = 1 + waits,
                            .backward_input = 1 + waits,
                            .backward_weight = 1,
                            .exchange = exchange,
                            .experts = 0.6,
                            .mixtures = kMixtures};
      const std::vector<Times> chunks(static_cast<std::size_t>(table.chunks()), inclusive);
      Schedule parts = interleave_pairs(add_transfers(table), std::vector<int>(chunks.size(), kMixtures));
      const double expected = replay(parts, {.times = {.exchange = exchange, .experts = 0.6}}).makespan;
      const double found = makespan(pairs_in_parts(table, chunks), chunks, /*link=*/0);
      EXPECT_NEAR(found, expected, 1e-9 * expected) << kind << " " << exchange;
      EXPECT_LE(found, makespan(table, chunks, 0) + 1e-9) << kind << " " << exchange;
    }
  }
}

}  // namespace
}  // namespace trireme::plan
