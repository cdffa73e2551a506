// Chimera with more micros than ranks: doubled forwards and halved backwards leave no gap between its units.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/compare.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

/// A backward that takes twice as long as a forward, as in a transformer.
constexpr Times kUsual{.forward = 1, .backward_input = 1, .backward_weight = 1};

double bubble_of(std::string_view kind, int ranks, int micros) {
  const Kind& of = find_kind(kind);
  return measure(of, {.ranks = ranks, .micros = micros, .chunks_per_rank = of.default_chunks}, kUsual).bubble;
}

/// 2107.06925, section 3.5: (D-2)/(3N/2+D-2), however many units follow each other.
TEST(Chimera, DoubledForwardsIdleByThePapersFormulaForAnyNumberOfUnits) {
  for (const int depth : {2, 4, 6, 8, 16}) {
    for (int units = 1; units <= 4; ++units) {
      const int micros = 2 * depth * units;
      const double expected = (depth - 2) / (1.5 * micros + depth - 2);
      EXPECT_NEAR(bubble_of("chimera-doubling", depth, micros), expected, 1e-9) << depth << " " << units;
      const Schedule table = build("chimera-doubling", {.ranks = depth, .micros = micros, .chunks_per_rank = 2});
      const Timing timing = replay(table, {.times = kUsual});
      for (int rank = 0; rank < depth; ++rank) EXPECT_NEAR(timing.idle(rank), 2 * (depth - 2), 1e-9);
    }
  }
}

/// The same table with passes half as long: D-2 forwards of one micro-batch.
TEST(Chimera, HalvedBackwardsIdleHalfAsLongInTheMemoryOfWholeOnes) {
  for (const int depth : {2, 4, 8}) {
    for (int units = 1; units <= 4; ++units) {
      const int micros = depth * units;
      EXPECT_NEAR(bubble_of("chimera-halving", depth, micros), (depth - 2) / (3.0 * micros + depth - 2), 1e-9);
      const auto memory = [&](const char* kind) {
        return measure(find_kind(kind), {.ranks = depth, .micros = 2 * micros, .chunks_per_rank = 2}, kUsual).memory;
      };
      EXPECT_EQ(memory("chimera-halving"), memory("chimera"));
      EXPECT_EQ(memory("chimera-doubling"), 2 * memory("chimera"));
    }
  }
}

/// Direct concatenation leaves gaps, so that plain 1F1B overtakes it; neither of the others is overtaken.
TEST(Chimera, BeatsOneFOneBWithMoreMicrosThanRanksWhereForwardAndBackwardAreMadeEqual) {
  for (const int depth : {4, 8}) {
    for (const int units : {2, 4, 8}) {
      const int micros = 2 * depth * units;
      const double plain = bubble_of("1f1b", depth, micros), direct = bubble_of("chimera", depth, micros);
      EXPECT_GT(direct, plain);
      EXPECT_LT(bubble_of("chimera-doubling", depth, micros), 0.7 * plain);
      EXPECT_LT(bubble_of("chimera-halving", depth, micros), 0.4 * plain);
    }
  }
}

TEST(Chimera, DoublesForwardsAsInFigure7) {
  const Schedule table = build("chimera-doubling", {.ranks = 4, .micros = 8, .chunks_per_rank = 2});
  EXPECT_EQ(ranks_text(table),
            "rank 0: FF0.0 FF4.0 FF2.3 B2.3 B3.3 FF6.3 B6.3 B7.3 B0.0 B1.0 B4.0 B5.0 G.0 G.3 O\n"
            "rank 1: FF0.1 FF2.2 FF4.1 FF6.2 B2.2 B3.2 B0.1 B1.1 B6.2 B7.2 B4.1 B5.1 G.1 G.2 O\n"
            "rank 2: FF2.1 FF0.2 FF6.1 FF4.2 B0.2 B1.2 B2.1 B3.1 B4.2 B5.2 B6.1 B7.1 G.1 G.2 O\n"
            "rank 3: FF2.0 FF6.0 FF0.3 B0.3 B1.3 FF4.3 B4.3 B5.3 B2.0 B3.0 B6.0 B7.0 G.0 G.3 O\n");
  // Both halves of a micro-batch: the same table, twice as many micros.
  const Schedule halves = build("chimera-halving", {.ranks = 4, .micros = 4, .chunks_per_rank = 2});
  EXPECT_EQ(halves.micro_parts, 2);
  EXPECT_EQ(halves.ranks, table.ranks);
  for (const Schedule& schedule : {table, halves, complete(halves)}) {
    EXPECT_EQ(parse(to_text(schedule)), schedule);
    EXPECT_EQ(from_json(to_json(schedule)), schedule);
  }
}

/// One message forward for two micros, one back for each.
TEST(Chimera, SendsTheActivationsOfADoubledForwardAtOnce) {
  const Schedule table = complete(build("chimera-doubling", {.ranks = 4, .micros = 8, .chunks_per_rank = 2}));
  int activations = 0, gradients = 0;
  for (const auto& list : table.ranks) {
    for (const Instruction& it : list) {
      activations += it.op == Op::kSendActivation;
      gradients += it.op == Op::kSendGradient;
    }
  }
  EXPECT_EQ(activations, 4 * 3);
  EXPECT_EQ(gradients, 8 * 3);
}

TEST(DoubledForwards, AreCheckedInPairs) {
  const auto first_fault = [](const std::string& text) {
    const Report report = check(parse(text));
    return report.fine() ? "fine" : report.faults.front();
  };
  EXPECT_EQ(first_fault("micros: 2\nchunks: 0\nrank 0: FF0 B0 B1\n"), "fine");
  EXPECT_THAT(first_fault("micros: 4\nchunks: 0\nrank 0: FF1 F0 F3 B0 B1 B2 B3\n"), HasSubstr("begins at an even one"));
  EXPECT_THAT(first_fault("micros: 3\nchunks: 0\nrank 0: FF0 FF2 B0 B1 B2\n"), HasSubstr("3 micros"));
  EXPECT_THAT(first_fault("micros: 2\nchunks: 0\nrank 0: FF0 F1 B0 B1\n"),
              HasSubstr("forward through chunk 0 already"));
  EXPECT_THAT(first_fault("micros: 2\nchunks: 0 0\nrank 0: FF0.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0\n"),
              HasSubstr("goes forward alone"));
  EXPECT_THAT(first_fault("micros: 2\nupdate-every: 1\nchunks: 0\nrank 0: FF0 B0 G O B1 G O\n"),
              HasSubstr("different optimizer steps"));
  EXPECT_THAT(first_fault("micros: 2\nchunks: 0 1 | 1 0\nroutes: 0 1\nrank 0: FF0.0 B0.0 B1.0\nrank 1: F0.1 B0.1\n"),
              HasSubstr("micro 1 meets chunk 0 on rank 1"));
  EXPECT_THROW(parse("micros: 3\nmicro-parts: 2\nchunks: 0\nrank 0: F0 B0\n"), ConfigError);
}

}  // namespace
}  // namespace trireme::schedule
