#include "trireme/schedule/replay.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/schedule/builders.h"
#include "trireme/schedule/passes.h"

namespace trireme::schedule {
namespace {

TEST(Replay, TimesAChainByHand) {
  const Schedule schedule = build("1f1b", {.ranks = 2, .micros = 1});
  const Timing timing =
      replay(schedule, {.times = {.forward = 2, .backward_input = 3, .backward_weight = 4, .link = 5}});
  // 2 forward, 5 on the way, 2 + 7 on the last rank, 5 back, 7.
  EXPECT_DOUBLE_EQ(timing.makespan, 2 + 5 + 2 + 7 + 5 + 7);
  EXPECT_DOUBLE_EQ(timing.ranks[0].busy, 9);
  EXPECT_DOUBLE_EQ(timing.idle(1), timing.makespan - 9);
  EXPECT_DOUBLE_EQ(timing.bubble(), 1 - 18 / (2 * timing.makespan));
  EXPECT_DOUBLE_EQ(timing.ranks[1].first_start, 7);
}

TEST(Replay, ALinkCarriesOneMessageAtATime) {
  // The link is slower than the ranks: the third activation is there after three turns of the link, the gradients,
  // which take no time to make, after three more.
  const Schedule schedule = build("gpipe", {.ranks = 2, .micros = 3});
  const Timing timing =
      replay(schedule, {.times = {.forward = 1, .backward_input = 0, .backward_weight = 0, .link = 10}});
  EXPECT_DOUBLE_EQ(timing.makespan, 1 + 3 * 10 + 1 + 3 * 10);
}

TEST(Replay, GivesSpansThatFollowEachOther) {
  for (const Kind& kind : kinds()) {
    const Schedule schedule = build(kind.name, {.ranks = 4, .micros = 8, .chunks_per_rank = kind.default_chunks});
    const Timing timing = replay(schedule, {.keep_spans = true});
    for (std::size_t rank = 0; rank < timing.ranks.size(); ++rank) {
      double end = 0, busy = 0;
      for (const Span& span : timing.ranks[rank].spans) {
        EXPECT_GE(span.start, end);
        end = span.end;
        busy += span.end - span.start;
      }
      const auto kept = std::ranges::count_if(schedule.ranks[rank], [](const Instruction& it) {
        return it.op != Op::kReduceGradients && !is_version(it.op);
      });
      EXPECT_EQ(timing.ranks[rank].spans.size(), static_cast<std::size_t>(kept));
      EXPECT_DOUBLE_EQ(busy, timing.ranks[rank].busy);
    }
  }
}

/// The plain way: go round all passes until nothing moves any more; every start is the latest end of what it needs.
double makespan_by_relaxing(const Schedule& schedule, const Times& times) {
  struct Pass {
    std::size_t rank;
    const Instruction* it;
    double end = 0;
  };
  std::vector<std::vector<Pass>> lists(schedule.ranks.size());
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Instruction& it : schedule.ranks[rank]) lists[rank].push_back({rank, &it});
  }
  const auto end_of = [&](bool forward, int chunk, int micro) {
    const auto rank = static_cast<std::size_t>(schedule.rank_of(chunk, micro));
    for (const Pass& pass : lists[rank]) {
      const bool does = forward ? does_forward(*pass.it) && pass.it->chunk == chunk && pass.it->micro == micro
                                : does_input_gradient(*pass.it) && backward_chunk(*pass.it) == chunk &&
                                      backward_micro(*pass.it) == micro;
      if (does) return pass.end;
    }
    return 0.0;
  };
  double makespan = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& list : lists) {
      double now = 0;
      for (Pass& pass : list) {
        const Instruction& it = *pass.it;
        double start = now;
        if (does_forward(it) && it.chunk > 0) start = std::max(start, end_of(true, it.chunk - 1, it.micro));
        if (does_input_gradient(it) && backward_chunk(it) < schedule.last_chunk())
          start = std::max(start, end_of(false, backward_chunk(it) + 1, backward_micro(it)));
        now = start + times.of(it.op);
        moved = moved || now != pass.end;
        pass.end = now;
        makespan = std::max(makespan, now);
      }
    }
  }
  return makespan;
}

TEST(Replay, EqualsThePlainWayForEveryKind) {
  const Times times{.forward = 1, .backward_input = 1.25, .backward_weight = 0.5, .overlapped = 2.5};
  for (const Kind& kind : kinds()) {
    for (const int ranks : {1, 2, 4}) {
      const Shape shape{.ranks = ranks, .micros = 8, .chunks_per_rank = kind.default_chunks};
      if (!kind.refuses(shape).empty()) continue;
      const Schedule schedule = build(kind.name, shape);
      EXPECT_DOUBLE_EQ(replay(schedule, {.times = times}).makespan, makespan_by_relaxing(schedule, times)) << kind.name;
    }
  }
}

TEST(Replay, TakesATimeForEachInstructionAndEachMessage) {
  // Rank 1 is twice as slow and never waits but for its first micro: it alone decides.
  const auto time_of = [](int rank, const Instruction& it) { return it.chunk < 0 || it.micro < 0 ? 0.0 : 1.0 + rank; };
  const Schedule schedule = build("1f1b", {.ranks = 2, .micros = 6});
  EXPECT_DOUBLE_EQ(replay(schedule, {.time_of = time_of}).makespan, 1 + 6 * 4 + 1);
  const auto link_of = [](int from, int to, const Instruction& send) {
    return from == 0 && to == 1 && send.micro == 0 ? 5.0 : 0.0;
  };
  EXPECT_DOUBLE_EQ(replay(schedule, {.time_of = time_of, .link_of = link_of}).makespan, 1 + 5 + 6 * 4 + 1);
}

TEST(Replay, TheCriticalPathIsAChainWithoutGapsFromStartToEnd) {
  for (const Kind& kind : kinds()) {
    for (const double link : {0.0, 0.3, 4.0}) {
      const Schedule schedule = build(kind.name, {.ranks = 4, .micros = 8, .chunks_per_rank = kind.default_chunks});
      const Timing timing =
          replay(schedule, {.times = {.reduce = 0.5, .optimizer = 1, .link = link}, .keep_path = true});
      double now = 0;
      for (const PathStep& step : timing.path) {
        EXPECT_DOUBLE_EQ(step.start, now) << kind.name << " at " << to_text(step.instruction, true);
        EXPECT_GT(step.end, step.start);
        now = step.end;
      }
      EXPECT_DOUBLE_EQ(now, timing.makespan) << kind.name;
    }
  }
}

TEST(Replay, AnUpdateWaitsForEveryHolderOfItsChunks) {
  // Each rank ends its own work at 12; the two copies of a chunk are summed after that, then both update.
  const Schedule schedule = build("dualpipe", {.ranks = 2, .micros = 4, .chunks_per_rank = 2});
  const Timing without = replay(schedule);
  EXPECT_DOUBLE_EQ(replay(schedule, {.times = {.reduce = 5, .optimizer = 2}}).makespan, without.makespan + 7);
  const auto slow_last_gradient = [](int rank, const Instruction& it) {
    return rank == 1 && does_weight_gradient(it) ? 10.0 : Times{.optimizer = 1}.of(it.op);
  };
  const Timing uneven = replay(schedule, {.time_of = slow_last_gradient, .keep_spans = true});
  EXPECT_DOUBLE_EQ(uneven.ranks[0].last_end, uneven.ranks[1].last_end) << "rank 0 waits for the gradients of rank 1";
}

TEST(Replay, ReductionsRunBesideTheComputation) {
  // Rank 0 of an interleaved pipeline reduces its later chunk while the earlier one is still going backward.
  const Schedule schedule = build("interleaved", {.ranks = 2, .micros = 4, .chunks_per_rank = 2});
  const double plain = replay(schedule).makespan;
  EXPECT_DOUBLE_EQ(replay(schedule, {.times = {.reduce = 3}}).makespan, plain + 3) << "only the last one is seen";
}

TEST(Replay, CountsMemory) {
  const Schedule schedule = build("1f1b", {.ranks = 4, .micros = 8});
  const Sizes sizes{.activation = 3, .weights = 10};
  EXPECT_EQ(replay(schedule, {.sizes = sizes}).peak_memory, (std::vector<double>{22, 19, 16, 13}));
  // What waits for its weight gradient only needs a third.
  const Schedule split = parse("micros: 2\nchunks: 0\nrank 0: F0 I0 F1 I1 W0 W1\n");
  EXPECT_EQ(peak_memory(split, {.activation = 3, .for_weights = 1}), (std::vector<double>{4}));
  const Schedule again = parse("micros: 2\nchunks: 0\nrank 0: F0 F1 R0 B0 R1 B1\n");
  EXPECT_EQ(peak_memory(again, {.activation = 10, .input = 1}), (std::vector<double>{11}));
}

TEST(Replay, ASteadyKindPaysOnlyOnceForFillingThePipeline) {
  const auto timing = [](int steps) { return replay(build("zb-h2", {.ranks = 4, .micros = 16, .steps = steps})); };
  EXPECT_NEAR(steady_bubble(timing(4), timing(8)), 0, 1e-9);
  EXPECT_GT(timing(1).bubble(), 0);
}

TEST(Replay, StopsWhereATableCannotRun) {
  const Schedule stuck = parse("micros: 2\nchunks: 0 1\nrank 0: F1 B1 F0 B0\nrank 1: F0 B0 F1 B1\n");
  EXPECT_THROW(replay(stuck), InternalError);
}

TEST(Times, AreReadAndWritten) {
  const Times times = parse_times("f=2, w=0.5,fb=2.5,link=1");
  EXPECT_EQ(times.forward, 2);
  EXPECT_EQ(times.backward_input, 1);
  EXPECT_EQ(times.pair(), 2.5);
  EXPECT_EQ(to_text(times), "f=2,b=1,w=0.5,fb=2.5,link=1");
  EXPECT_EQ(to_text(parse_times(to_text(times))), to_text(times));
  for (const char* wrong : {"", "f", "f=", "f=-1", "f=x", "q=1", "f=1,,b=1", "f=inf"})
    EXPECT_THROW(parse_times(wrong), ConfigError) << wrong;
}

}  // namespace
}  // namespace trireme::schedule
