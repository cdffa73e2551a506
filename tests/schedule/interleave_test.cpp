#include "trireme/schedule/interleave.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace trireme::schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Schedule pair_on_one_rank() { return parse("micros: 2\nchunks: 0\nrank 0: F0 F1+B0 B1\n"); }

TEST(Interleave, APairBecomesPartsThatAlternate) {
  EXPECT_EQ(ranks_text(interleave_pairs(pair_on_one_rank(), {1})), "rank 0: F0 FA1 D1 BA0 D0 E1 E0 C1 C0 B1\n");
  EXPECT_EQ(ranks_text(interleave_pairs(pair_on_one_rank(), {2})),
            "rank 0: F0 FA1 D1 BA0 D0 E1 E0 C1 D1 C0 D0 E1 E0 C1 C0 B1\n");
  EXPECT_EQ(ranks_text(interleave_pairs(pair_on_one_rank(), {0})), "rank 0: F0 F1+B0 B1\n");
}

/// A chunk without mixtures goes through while the other's rows are on their way.
TEST(Interleave, AChunkWithoutMixturesRunsThrough) {
  const Schedule two = parse("micros: 2\nchunks: 0 0\nrank 0: F0.0 F0.1 F1.0+B0.1 F1.1 B1.1 B0.0 B1.0\n");
  EXPECT_THAT(ranks_text(interleave_pairs(two, {1, 0})), HasSubstr(" FA1.0 D1.0 B0.1 E1.0 C1.0 "));
  EXPECT_THAT(ranks_text(interleave_pairs(two, {0, 1})), HasSubstr(" F1.0 BA0.1 D0.1 E0.1 C0.1 "));
}

/// Whatever the size: fine, readable in both forms, and with as many micros in flight.
TEST(Interleave, EveryDualPipeIsFineInParts) {
  for (const char* kind : {"dualpipe", "dualpipe-v"}) {
    for (const int ranks : {2, 4, 8}) {
      const Schedule table = complete(build(kind, {.ranks = ranks, .micros = 2 * ranks + 2, .chunks_per_rank = 2}));
      const Schedule parts = interleave_pairs(table, std::vector<int>(static_cast<std::size_t>(table.chunks()), 3));
      EXPECT_TRUE(has_parts(parts)) << kind;
      const Report whole = check(table), cut = check(parts);
      EXPECT_THAT(cut.faults, testing::IsEmpty()) << kind;
      EXPECT_EQ(cut.peak_in_flight, whole.peak_in_flight) << kind;
      EXPECT_EQ(cut.slots, whole.slots) << kind;
      EXPECT_EQ(read(to_text(parts)), parts) << kind;
      EXPECT_EQ(read(to_json(parts)), parts) << kind;
      EXPECT_EQ(complete(parts), parts) << kind;
    }
  }
}

std::string parts_faults(const std::string& list) {
  return fmt::format("{}", fmt::join(check(parse("micros: 2\nchunks: 0\nmixtures: 1\nrank 0: " + list)).faults, "; "));
}

TEST(Interleave, WhatIsWrongWithPartsIsSaid) {
  EXPECT_EQ(parts_faults("FA0 D0 E0 C0 F1 B0 BA1 D1 E1 C1"), "");
  EXPECT_THAT(parts_faults("FA0 D0 C0 F1 B0 B1"), HasSubstr("its next part is E (experts)"));
  EXPECT_THAT(parts_faults("FA0 D0 E0 C0 D0 F1 B0 B1"), HasSubstr("micro 0 is in no pass in parts"));
  EXPECT_THAT(parts_faults("FA0 D0 E0 B0 C0 F1 B1"), HasSubstr("its micro is in the midst of a pass through chunk 0"));
  EXPECT_THAT(parts_faults("F0 FA1 D1 B0 E1 B1 C1"), HasSubstr("its micro is in the midst"));
  EXPECT_THAT(parts_faults("F0 F1 B0 BA1 D1 E1 G O C1"), HasSubstr("micro 1 is in the midst of its pass"));
  EXPECT_THAT(parts_faults("F0 F1 B0 BA1 D1 E1"), HasSubstr("never ends"));
  EXPECT_THAT(check(parse("micros: 1\nchunks: 0\nrank 0: FA0 D0 E0 C0 B0")).faults,
              ElementsAre(HasSubstr("chunk 0 has no mixture that sends rows")));
  EXPECT_THROW(parse("micros: 1\nchunks: 0\nmixtures: 1 1\nrank 0: F0 B0"), ConfigError);
  // Without its transfers nobody could put them in: not into the midst of a pass.
  const Schedule bare = interleave_pairs(build("dualpipe", {.ranks = 2, .micros = 4, .chunks_per_rank = 2}), {1, 1});
  EXPECT_THAT(check(bare).faults, ElementsAre(HasSubstr("transfers are not written")));
}

double parts_seconds(const std::vector<int>& mixtures, double exchange, bool parts) {
  Schedule table = pair_on_one_rank();
  if (parts) {
    table = interleave_pairs(table, mixtures);
  } else {
    table.mixtures = mixtures;
  }
  return replay(table, {.times = {.exchange = exchange}}).makespan;
}

/// By hand: of a forward 1/4, 1/2 (experts), 1/4, of a backward twice as much. F0 takes 1 and B1 2, each waiting for
/// its rows twice.
TEST(Interleave, RowsThatAreOnTheirWayBesideAnotherPassTakeNoTime) {
  const double alone = 1 + 2 * 0.2 + 2 + 2 * 0.2;
  EXPECT_NEAR(parts_seconds({1}, 0.2, /*parts=*/true), alone + 3, 1e-12) << "all of four exchanges is hidden";
  EXPECT_NEAR(parts_seconds({1}, 0.2, /*parts=*/false), alone + 3 + 4 * 0.2, 1e-12);
  // FA to .25, rows of F there at 1.25; BA to .75, rows of B at 2.25; E1 1.25 to 1.75, back at 3.25; E0 2.25 to 3.25,
  // back at 4.25; C1 to 3.5; C0 4.25 to 4.75.
  EXPECT_NEAR(parts_seconds({1}, 1, /*parts=*/true), 1 + 2 + 2 + 2 + 4.75, 1e-12);
  EXPECT_NEAR(parts_seconds({3}, 0, /*parts=*/true), 6, 1e-12);
}

/// On whole pipelines parts never take longer than whole pairs, and hide what there is to hide.
TEST(Interleave, DualPipeHidesItsExchanges) {
  for (const char* kind : {"dualpipe", "dualpipe-v"}) {
    const Schedule table = complete(build(kind, {.ranks = 4, .micros = 24, .chunks_per_rank = 2}));
    const std::vector<int> mixtures(static_cast<std::size_t>(table.chunks()), 2);
    Schedule whole = table;
    whole.mixtures = mixtures;
    const ReplayOptions options{.times = {.exchange = 0.1}};
    const double parts = replay(interleave_pairs(table, mixtures), options).makespan,
                 plain = replay(whole, options).makespan, free = replay(table, {}).makespan;
    EXPECT_LT(parts, plain) << kind;
    EXPECT_LT(parts - free, 0.5 * (plain - free)) << kind << ": most passes are in pairs";
    EXPECT_GE(parts, free - 1e-9) << kind;
  }
}

}  // namespace
}  // namespace trireme::schedule
