#include "trireme/pipeline/executor.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"
#include "trireme/schedule/check.h"

namespace trireme::pipeline {
namespace {

using spec::Family;
using testing::AllOf;
using testing::HasSubstr;

schedule::Schedule one_f_one_b(int ranks, int micros) { return table_of("1f1b", {.ranks = ranks, .micros = micros}); }

/// Between encoder and decoder two tensors cross, of two lengths, one of them perhaps token numbers: cut everywhere.
TEST(Executor, CutsAnEncoderAndDecoderAnywhere) {
  const Problem problem = small_problem(Family::kTransformer, 2, 3);
  const Outcome serial = train_serially(problem);
  const std::vector<std::string> names = chain_names(problem.shape);
  for (std::size_t i = 1; i < names.size(); ++i) {
    SCOPED_TRACE(names[i]);
    expect_equal(serial, train_as_pipeline(problem, {.table = one_f_one_b(2, 3), .ranks = 2, .starts = {names[i]}}),
                 1e-9);
  }
  const int all = static_cast<int>(names.size());
  expect_equal(serial, train_as_pipeline(problem, {.table = one_f_one_b(all, 3), .ranks = all}), 1e-9);
}

TEST(Executor, RunsEveryFamilyWithDropout) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kQwen3, Family::kBert, Family::kTransformer}) {
    SCOPED_TRACE(static_cast<int>(family));
    Problem problem = small_problem(family, 4, 4);
    problem.shape.dropout = problem.shape.attention_dropout = family == Family::kLlama ? 0 : 0.1;
    for (const char* kind : {"1f1b", "zb-v", "dualpipe-v", "chimera-doubling", "chimera-halving"}) {
      const int chunks = schedule::find_kind(kind).default_chunks;
      expect_equal(
          train_serially(problem),
          train_as_pipeline(
              problem, {.table = table_of(kind, {.ranks = 2, .micros = 4, .chunks_per_rank = chunks}), .ranks = 2}),
          1e-9);
    }
  }
}

/// The table's own recomputation, and the layers' below it. Every gradient has the same bits, but the head's arise when
/// the last chunk is recomputed, so its micros may be added up in another order.
TEST(Executor, RecomputesTheSameNumbers) {
  for (const char* kind : {"gpipe", "1f1b", "zb-h1", "interleaved"}) {
    SCOPED_TRACE(kind);
    schedule::Shape shape{.ranks = 3, .micros = 4};
    Problem problem = small_problem(Family::kGpt2, 6, 4);
    problem.shape.dropout = 0.1;
    const Outcome plain = train_as_pipeline(problem, {.table = table_of(kind, shape), .ranks = 3});
    shape.recompute = true;
    const Outcome again = train_as_pipeline(problem, {.table = table_of(kind, shape), .ranks = 3});
    expect_equal(plain, again, 1e-13);
    problem.build.recompute.kind = nn::RecomputeKind::kFull;
    expect_same_bits(again, train_as_pipeline(problem, {.table = table_of(kind, shape), .ranks = 3}));
  }
}

/// As the paper runs doubled forwards: each micro alone is recomputed before its backward.
TEST(Executor, RecomputesTheMicrosOfADoubledForwardOneByOne) {
  for (const char* kind : {"chimera-doubling", "chimera-halving"}) {
    Problem problem = small_problem(Family::kGpt2, 6, 8);
    problem.shape.dropout = 0.1;
    const schedule::Shape shape{.ranks = 4, .micros = 8, .chunks_per_rank = 2, .recompute = true};
    expect_equal(train_serially(problem), train_as_pipeline(problem, {.table = table_of(kind, shape), .ranks = 4}),
                 1e-9);
  }
}

/// Pipelines side by side: gradients over replicas, over the copies of bidirectional kinds, and of tied embeddings.
TEST(Executor, ReplicasOfPipelinesEqualTheSerialRun) {
  const Problem problem = small_problem(Family::kGpt2, 5, 8);
  const Outcome serial = train_serially(problem);
  for (const char* kind : {"1f1b", "zb-h2", "chimera", "chimera-doubling", "chimera-halving", "dualpipe", "zb-v"}) {
    SCOPED_TRACE(kind);
    const schedule::Shape shape{.ranks = 2, .micros = 4, .chunks_per_rank = schedule::find_kind(kind).default_chunks};
    const Pipelined how{.table = table_of(kind, shape), .ranks = 2, .data_parallel = 2};
    const Outcome outcome = train_as_pipeline(problem, how);
    expect_equal(serial, outcome, 1e-9);
    expect_same_bits(outcome, train_as_pipeline(problem, how));
  }
}

TEST(Executor, OneRankExecutesATableToo) {
  const Problem problem = small_problem(Family::kGpt2, 3, 4);
  expect_equal(train_serially(problem), train_as_pipeline(problem, {.table = one_f_one_b(1, 4), .ranks = 1}), 1e-12);
}

/// What a researcher writes in a file: forwards of both micros first, then backwards in the other order.
TEST(Executor, RunsATableWrittenByHand) {
  const Problem problem = small_problem(Family::kLlama, 3, 2);
  const auto table =
      schedule::complete(schedule::parse("name: mine\n"
                                         "micros: 2\n"
                                         "chunks: 0 1 0\n"
                                         "rank 0: F0.0 F1.0 F1.2 I1.2 F0.2 W1.2 B0.2 B0.0 I1.0 W1.0\n"
                                         "rank 1: F1 F0 B1 B0\n"));
  ASSERT_THAT(schedule::check(table).faults, testing::IsEmpty());
  expect_equal(train_serially(problem), train_as_pipeline(problem, {.table = table, .ranks = 2}), 1e-9);
}

/// All of LAMB's norms are of whole parameters; only the clipping looks over all stages.
TEST(Executor, EveryOptimizerClipsOverAllStages) {
  using Kind = spec::OptimizerKind;
  for (const Kind kind : {Kind::kSgd, Kind::kAdam, Kind::kLamb, Kind::kLars}) {
    SCOPED_TRACE(static_cast<int>(kind));
    Problem problem = small_problem(Family::kGpt2, 4, 4);
    problem.optim.kind = kind;
    problem.optim.weight_decay = 0.1;
    const auto table = table_of("chimera", {.ranks = 2, .micros = 4, .chunks_per_rank = 2});
    expect_equal(train_serially(problem), train_as_pipeline(problem, {.table = table, .ranks = 2}), 1e-9);
    expect_equal(train_serially(problem), train_as_pipeline(problem, {.table = one_f_one_b(4, 4), .ranks = 4}), 1e-9);
  }
}

TEST(Executor, ErrorsNameRankInstructionAndMicro) {
  const Problem problem = small_problem(Family::kGpt2, 2, 3);
  std::string text;
  try {
    comm::run_ranks(
        2,
        [&](comm::Rank& rank) {
          const auto table = one_f_one_b(2, 3);
          const Split split = split_by_count(chain_names(problem.shape), 2);
          Stage stage = build_stage({.shape = problem.shape, .table = table, .split = split, .rank = rank.rank()});
          nn::initialise(stage.model->params, nn::Precision::kFp32, 1);
          Executor executor({.table = table, .stage = stage, .pipeline = rank.world()});
          executor.run({.micro =
                            [&](int micro) {
                              Micro made = make_micro(problem, micro);
                              if (micro == 1) made.inputs[0].fill_(999);
                              return made;
                            },
                        .update = [](int) {}});
        },
        quiet());
  } catch (const Error& error) {
    text = error.block();
  }
  EXPECT_THAT(text, AllOf(HasSubstr("token 999"), HasSubstr("on rank 0 of the pipeline"),
                          HasSubstr("F1.0: forward, micro 1"), HasSubstr("schedule 1f1b")));
}

TEST(Executor, RefusesWhatCannotRun) {
  const Problem problem = small_problem(Family::kGpt2, 2, 3);
  const auto message = [&](const schedule::Schedule& table, int ranks) {
    std::string text;
    try {
      train_as_pipeline(problem, {.table = table, .ranks = ranks});
    } catch (const Error& error) {
      text = error.block();
    }
    return text;
  };
  EXPECT_THAT(message(one_f_one_b(3, 3), 2), HasSubstr("is for 3 ranks, but the pipeline has 2"));
  EXPECT_THAT(message(table_of("hetpipe", {.ranks = 2, .micros = 2, .steps = 3}), 2),
              AllOf(HasSubstr("embedding.tokens.weight is in 2 stages"), HasSubstr("model.tied = false")));
  schedule::Schedule broken = one_f_one_b(2, 3);
  std::swap(broken.ranks[0][0], broken.ranks[0][2]);
  EXPECT_NE(message(broken, 2), "");
  // The head's gradients would go into the step before the others'.
  const auto late =
      schedule::complete(schedule::parse("name: late\nmicros: 2\nupdate-every: 1\nweights: stash\n"
                                         "chunks: 0\nrank 0: F0 F1 B0 G VS0 O VL0 B1 VD0 G O\n"));
  EXPECT_THAT(message(late, 1), AllOf(HasSubstr("schedule late, rank 0"), HasSubstr("micro 1")));
}

TEST(Executor, ReportsWhatItRan) {
  const Problem problem = small_problem(Family::kLlama, 2, 4);
  comm::run_ranks(2, [&](comm::Rank& rank) {
    const auto table = one_f_one_b(2, 4);
    const Split split = split_by_count(chain_names(problem.shape), 2);
    Stage stage = build_stage({.shape = problem.shape, .table = table, .split = split, .rank = rank.rank()});
    nn::initialise(stage.model->params, nn::Precision::kFp32, 1);
    auto optimizer = optim::make_optimizer(problem.optim, stage.model->params);
    Executor executor({.table = table, .stage = stage, .pipeline = rank.world()});
    int updates = 0;
    const RunReport report = executor.run({.micro = [&](int micro) { return make_micro(problem, micro); },
                                           .update =
                                               [&](int step) {
                                                 EXPECT_EQ(step, 0);
                                                 ++updates;
                                                 nn::zero_grad(stage.model->params);
                                               },
                                           .keep_spans = true});
    EXPECT_EQ(updates, 1);
    EXPECT_EQ(report.spans.size(), table.ranks[static_cast<std::size_t>(rank.rank())].size());
    for (std::size_t i = 1; i < report.spans.size(); ++i) EXPECT_GE(report.spans[i].start, report.spans[i - 1].end);
    ASSERT_EQ(report.steps.size(), 1u);
    EXPECT_GT(nn::sum_of(report.steps[0].losses), 0);  // on the first rank too, which has no loss of its own
    EXPECT_GT(report.steps[0].flops, 0);
    EXPECT_EQ(report.steps[0].recomputed_flops, 0);
  });
}

}  // namespace
}  // namespace trireme::pipeline
