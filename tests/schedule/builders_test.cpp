// Every kind, on every shape in its domain, is a table that can run and does what its paper says; outside it says so.
#include "trireme/schedule/builders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "trireme/base/error.h"
#include "trireme/schedule/check.h"
#include "trireme/schedule/compare.h"
#include "trireme/schedule/passes.h"
#include "trireme/schedule/replay.h"

namespace trireme::schedule {

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }  // in failures

namespace {

using testing::Each;
using testing::HasSubstr;
using testing::Le;

constexpr int kMostRanks = 8, kMostMicros = 32, kMostChunks = 4;

/// Calls body(shape) for every shape in the kind's domain whose micros are taken.
template <typename Body, typename Micros>
int for_domain(const Kind& kind, Micros&& takes, Body&& body) {
  int shapes = 0;
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (int micros = 1; micros <= kMostMicros; ++micros) {
      for (int chunks = 1; chunks <= kMostChunks; ++chunks) {
        const Shape shape{.ranks = ranks, .micros = micros, .chunks_per_rank = chunks};
        if (!takes(micros) || !kind.refuses(shape).empty()) continue;
        SCOPED_TRACE(fmt::format("{}: {} ranks, {} micros, {} chunks a rank", kind.name, ranks, micros, chunks));
        body(shape);
        ++shapes;
        if (testing::Test::HasFailure()) return shapes;
      }
    }
  }
  return shapes;
}

template <typename Body>
int for_domain(const Kind& kind, Body&& body) {
  return for_domain(
      kind, [](int) { return true; }, body);
}

/// Enough to see every remainder by the ranks, few and many.
bool is_sample(int micros) { return micros <= 4 || micros == 7 || micros == 13 || micros % 8 == 0; }

/// Times of a chunk, so that a rank's share of the model takes one of each.
ReplayOptions unit_times(const Schedule& schedule) { return {.times = Times{}.scaled(pass_share(schedule))}; }

void expect_fine(const Schedule& schedule) {
  const Report report = check(schedule);
  EXPECT_TRUE(report.fine()) << fmt::format("{}", fmt::join(report.faults, "\n"));
}

class EveryKind : public testing::TestWithParam<Kind> {};

TEST_P(EveryKind, IsARunnableStepOnItsWholeDomain) {
  const int shapes = for_domain(GetParam(), [&](const Shape& shape) {
    const Report report = check(build(GetParam().name, shape));
    EXPECT_TRUE(report.fine()) << fmt::format("{}", fmt::join(report.faults, "\n"));
    // One place in a channel is enough for all but the one that lets activations wait for a whole turn.
    EXPECT_LE(report.slots, GetParam().name == "breadth-first" ? shape.micros : 1);
  });
  EXPECT_GT(shapes, 40);
}

TEST_P(EveryKind, RunsSeveralStepsWithoutEmptyingThePipeline) {
  for_domain(GetParam(), is_sample, [&](Shape shape) {
    shape.steps = 3;
    expect_fine(build(GetParam().name, shape));
  });
}

TEST_P(EveryKind, NamesItselfAndTheReasonOutsideItsDomain) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (const int micros : {1, 7, 32}) {
      for (int chunks = 1; chunks <= kMostChunks; ++chunks) {
        const Shape shape{.ranks = ranks, .micros = micros, .chunks_per_rank = chunks};
        if (GetParam().refuses(shape).empty()) continue;
        try {
          build(GetParam().name, shape);
          FAIL() << ranks << " " << micros << " " << chunks;
        } catch (const ConfigError& error) {
          EXPECT_THAT(error.message(), HasSubstr(fmt::format("schedule {} is not defined on", GetParam().name)));
        }
      }
    }
  }
  EXPECT_THROW(build(GetParam().name, {.ranks = 0}), ConfigError);
  EXPECT_THROW(build(GetParam().name, {.steps = 0}), ConfigError);
  EXPECT_THROW(build(GetParam().name, {.ranks = 4096, .micros = 1 << 19}), ConfigError);
}

TEST_P(EveryKind, ReplaysToThePapersFormulas) {
  const std::vector<Times> all{{},
                               {.forward = 1, .backward_input = 0.5, .backward_weight = 0.5},
                               {.forward = 1, .backward_input = 1.5, .backward_weight = 0.75}};
  if (GetParam().name == "list") return;  // it has none
  int bubbles = 0, memories = 0;
  for_domain(GetParam(), is_sample, [&](const Shape& shape) {
    for (const Times& times : all) {
      const Measures measures = measure(GetParam(), shape, times);
      const double weights = GetParam().asynchronous ? measures.versions : measures.weights;
      EXPECT_NEAR(measures.bubble, measures.bubble_formula.value_or(measures.bubble), 1e-9) << to_text(times);
      EXPECT_NEAR(measures.memory, measures.memory_formula.value_or(measures.memory), 1e-9);
      EXPECT_EQ(weights, measures.weights_formula.value_or(weights));
      bubbles += measures.bubble_formula.has_value();
      memories += measures.memory_formula.has_value();
    }
  });
  EXPECT_GT(bubbles, 10);
  EXPECT_GT(memories, 10);
}

TEST_P(EveryKind, RecomputesWhereAsked) {
  for_domain(GetParam(), is_sample, [&](Shape shape) {
    shape.steps = 2;
    const Schedule plain = build(GetParam().name, shape);
    shape.recompute = true;
    const Schedule schedule = build(GetParam().name, shape);
    expect_fine(schedule);
    const Sizes sizes{.activation = 1, .for_weights = 1, .input = 0, .weights = 0};
    const auto with = peak_memory(schedule, sizes), without = peak_memory(plain, sizes);
    for (std::size_t rank = 0; rank < with.size(); ++rank) EXPECT_LE(with[rank], without[rank]);
  });
}

INSTANTIATE_TEST_SUITE_P(Schedule, EveryKind, testing::ValuesIn(kinds().begin(), kinds().end()), [](const auto& test) {
  std::string name(test.param.name);
  std::ranges::replace(name, '-', '_');
  return "_" + name;
});

TEST(Builders, AnUnknownKindIsAnErrorWithTheNearestName) {
  try {
    find_kind("zbh1");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("did you mean \"zb-h1\"?"));
  }
}

TEST(Builders, TakeAFileThatFitsTheShape) {
  const std::string path = testing::TempDir() + "/schedule-" + std::to_string(getpid()) + ".txt";
  const Schedule schedule = build("1f1b", {.ranks = 2, .micros = 3});
  std::ofstream(path) << "micros: 3\nchunks: 0 1\nname: 1f1b\nrank 0: F0 F1 B0 F2 B1 B2\nrank 1: F0 B0 F1 B1 F2 B2\n";
  EXPECT_EQ(build("file:" + path, {.ranks = 2, .micros = 3}), schedule) << "with the updates that were left out";
  EXPECT_THROW(build("file:" + path, {.ranks = 2, .micros = 4}), ConfigError);
  std::ofstream(path) << "micros: 1\nchunks: 0 1\nrank 0: F0 B0\nrank 1: F0\n";
  EXPECT_THROW(build("file:" + path, {.ranks = 2, .micros = 1}), ConfigError);
  std::remove(path.c_str());
  EXPECT_THROW(build("file:" + path, {.ranks = 2, .micros = 1}), IoError);
}

TEST(Builders, MakeTheTextbookTables) {
  EXPECT_EQ(ranks_text(build("gpipe", {.ranks = 2, .micros = 3})),
            "rank 0: F0 F1 F2 B2 B1 B0 G O\n"
            "rank 1: F0 F1 F2 B2 B1 B0 G O\n");
  EXPECT_EQ(ranks_text(build("1f1b", {.ranks = 2, .micros = 3})),
            "rank 0: F0 F1 B0 F2 B1 B2 G O\n"
            "rank 1: F0 B0 F1 B1 F2 B2 G O\n");
  EXPECT_EQ(ranks_text(build("interleaved", {.ranks = 2, .micros = 2, .chunks_per_rank = 2})),
            "rank 0: F0.0 F1.0 F0.2 F1.2 B0.2 B1.2 G.2 B0.0 B1.0 G.0 O\n"
            "rank 1: F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 G.3 B0.1 B1.1 G.1 O\n");
  EXPECT_EQ(ranks_text(build("breadth-first", {.ranks = 2, .micros = 2, .chunks_per_rank = 2})),
            "rank 0: F0.0 F1.0 F0.2 F1.2 B0.2 B1.2 G.2 B0.0 B1.0 G.0 O\n"
            "rank 1: F0.1 F1.1 F0.3 F1.3 B0.3 B1.3 G.3 B0.1 B1.1 G.1 O\n");
  EXPECT_EQ(ranks_text(build("zb-h1", {.ranks = 2, .micros = 4})),
            "rank 0: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 G O\n"
            "rank 1: F0 I0 W0 F1 I1 W1 F2 I2 F3 I3 W2 W3 G O\n");
  // 2107.06925, figure 3; micros 0 and 2 run down, 1 and 3 up. Both ranks reduce both chunks in the same order.
  EXPECT_EQ(ranks_text(build("chimera", {.ranks = 4, .micros = 4, .chunks_per_rank = 2})),
            "rank 0: F0.0 F2.0 F1.3 B1.3 F3.3 B3.3 B0.0 B2.0 G.0 G.3 O\n"
            "rank 1: F0.1 F1.2 F2.1 F3.2 B1.2 B0.1 B3.2 B2.1 G.1 G.2 O\n"
            "rank 2: F1.1 F0.2 F3.1 F2.2 B0.2 B1.1 B2.2 B3.1 G.1 G.2 O\n"
            "rank 3: F1.0 F3.0 F0.3 B0.3 F2.3 B2.3 B1.0 B3.0 G.0 G.3 O\n");
}

TEST(OneFOneB, HoldsAsManyMicrosAsThereAreRanksToCome) {
  for_domain(find_kind("1f1b"), [](const Shape& shape) {
    const Report report = check(build("1f1b", shape));
    for (int rank = 0; rank < shape.ranks; ++rank)
      EXPECT_EQ(report.peak_in_flight[static_cast<std::size_t>(rank)], std::min(shape.ranks - rank, shape.micros));
  });
}

TEST(Interleaved, WithOneChunkIs1F1B) {
  for (const int micros : {1, 3, 8}) {
    const Shape shape{.ranks = 4, .micros = micros};
    EXPECT_EQ(build("interleaved", shape).ranks, build("1f1b", shape).ranks);
  }
}

TEST(Interleaved, WithAnIncompleteGroupTakesNoLongerThanWithTheWholeOne) {
  for (int micros = 1; micros <= 24; ++micros) {
    const Shape shape{.ranks = 4, .micros = micros, .chunks_per_rank = 3};
    Shape whole = shape;
    whole.micros = (micros + 3) / 4 * 4;
    const Schedule part = build("interleaved", shape), full = build("interleaved", whole);
    EXPECT_LE(replay(part, unit_times(part)).makespan, replay(full, unit_times(full)).makespan + 1e-9) << micros;
  }
}

TEST(ZbH1, IdlesByThePapersFormulaOnEveryRankInTheMemoryOf1F1B) {
  for_domain(find_kind("zb-h1"), [](const Shape& shape) {
    const Schedule schedule = build("zb-h1", shape);
    EXPECT_THAT(peak_in_flight(schedule), Each(Le(shape.ranks)));
    if (shape.micros < shape.ranks) return;
    const Timing timing = replay(schedule);
    for (int rank = 0; rank < shape.ranks; ++rank) EXPECT_NEAR(timing.idle(rank), shape.ranks - 1, 1e-9);
  });
}

TEST(ZbH2, IdlesNowhereBetweenItsFirstAndLastInstruction) {
  for_domain(find_kind("zb-h2"), [](const Shape& shape) {
    const Schedule schedule = build("zb-h2", shape);
    EXPECT_THAT(peak_in_flight(schedule), Each(Le(2 * shape.ranks - 1)));
    if (shape.micros < 2 * shape.ranks - 1) return;
    for (const RankTiming& rank : replay(schedule).ranks)
      EXPECT_NEAR(rank.last_end - rank.first_start, rank.busy, 1e-9);
  });
}

TEST(DualPipe, IdlesAsPublishedBesideOthers) {
  // 2412.19437, table 2, with times of a rank's share: (p-1)(F+B) for 1F1B, (p/2-1)(F&B + B - 3W) for DualPipe.
  const Shape shape{.ranks = 8, .micros = 32};
  EXPECT_NEAR(replay(build("1f1b", shape)).idle(0), 7 * 3, 1e-9);
  EXPECT_NEAR(replay(build("dualpipe", {.ranks = 8, .micros = 32, .chunks_per_rank = 2})).idle(0), 3 * (3 + 2 - 3),
              1e-9);
}

TEST(Chimera, HoldsLessOnTheRanksInTheMiddle) {
  // 2107.06925, table 2: from D/2+1 in the middle to D at the ends.
  const auto peaks = peak_in_flight(build("chimera", {.ranks = 8, .micros = 8, .chunks_per_rank = 2}));
  EXPECT_EQ(peaks, (std::vector<int>{5, 6, 7, 8, 8, 7, 6, 5}));
}

}  // namespace
}  // namespace trireme::schedule
