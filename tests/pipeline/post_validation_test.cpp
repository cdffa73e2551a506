// Updates that are validated after the fact end where those end that wait for the norm.
#include "trireme/pipeline/post_validation.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/pipeline/support.h"
#include "trireme/schedule/check.h"

namespace trireme::pipeline {
namespace {

using spec::Family;

struct Settled {
  Outcome outcome;
  int redone = 0;
};

/// All steps in one table; `poison`: a micro whose loss is not finite.
Settled train_optimistically(const Problem& problem, const schedule::Schedule& table, int poison = -1) {
  Settled settled;
  std::mutex mutex;
  comm::run_ranks(
      static_cast<int>(table.ranks.size()),
      [&](comm::Rank& rank) {
        at::set_num_threads(1);
        const Split split = split_by_count(chain_names(problem.shape), table.chunks());
        Stage stage = build_stage({.shape = problem.shape,
                                   .table = table,
                                   .split = split,
                                   .precision = nn::Precision::kFp64,
                                   .rank = rank.rank()});
        nn::initialise(stage.model->params, nn::Precision::kFp64, problem.seed);
        const auto optimizer = optim::make_optimizer(problem.optim, stage.model->params);
        Executor executor({.table = table, .stage = stage, .pipeline = rank.world()});
        PostValidatedUpdate update(*optimizer, executor.reduction());
        std::vector<double> norms;
        const auto settle = [&] {
          norms.push_back(update.result().gradient_norm);
          return true;
        };
        const RunReport report =
            executor.run({.micro =
                              [&](int micro) {
                                Micro made = make_micro(problem, micro);
                                made.context.gradient_scale = 1 / targets_of(problem, micro / problem.micros);
                                if (micro == poison)
                                  made.context.gradient_scale = std::numeric_limits<double>::quiet_NaN();
                                return made;
                              },
                          .update = [&](int) { update.take({.learning_rate = problem.optim.learning_rate}); },
                          .validated = [&] { return update.validated() && settle(); },
                          .redo =
                              [&] {
                                update.redo();
                                settle();
                              }});
        collect(settled.outcome, mutex, stage.model->params);
        if (rank.rank() != 0) return;
        settled.redone = update.redone();
        settled.outcome.norms = norms;
        for (int step = 0; step < problem.steps; ++step) {
          settled.outcome.losses.push_back(nn::sum_of(report.steps[static_cast<std::size_t>(step)].losses) /
                                           targets_of(problem, step));
        }
      },
      quiet());
  return settled;
}

/// Clipped always, never, and sometimes: what is redone ends at the same weights, wherever ranks had gone on to.
TEST(Optimistic, EqualsTheSerialRunHoweverOftenItIsWrong) {
  for (const char* kind : {"zb-h2", "zb-v", "zb-h1", "1f1b", "gpipe", "interleaved", "chimera", "chimera-doubling",
                           "chimera-halving", "dualpipe"}) {
    SCOPED_TRACE(kind);
    const int ranks = 4;
    const schedule::Shape shape{
        .ranks = ranks, .micros = 8, .chunks_per_rank = schedule::find_kind(kind).default_chunks};
    Problem problem = small_problem(Family::kGpt2, 7, 8);
    problem.steps = 4;
    problem.optim.grad_clip_norm = 0;
    const Outcome unclipped = train_serially(problem);
    std::vector<double> norms = unclipped.norms;
    std::ranges::sort(norms);
    const auto table = table_of(kind, shape, problem.steps);
    for (const double clip : {0.01, (norms[1] + norms[2]) / 2, 1e6}) {
      problem.optim.grad_clip_norm = clip;
      const Settled settled = train_optimistically(problem, table);
      expect_equal(train_serially(problem), settled.outcome, 1e-9);
      if (clip == 0.01) {
        EXPECT_EQ(settled.redone, problem.steps);
      } else if (clip == 1e6) {
        EXPECT_EQ(settled.redone, 0);
      } else {
        EXPECT_GT(settled.redone, 0);
        EXPECT_LT(settled.redone, problem.steps);
      }
    }
  }
}

TEST(Optimistic, NamesGradientsThatAreNoNumbers) {
  const Problem problem = small_problem(Family::kLlama, 5, 8);
  const auto table = table_of("zb-h2", {.ranks = 4, .micros = 8}, problem.steps);
  try {
    train_optimistically(problem, table, /*poison=*/9);
    FAIL();
  } catch (const optim::NonFiniteGradients& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("not finite after 1 step"));
  }
}

/// Nothing in an window depends on a backward pass of the step: replaying windows alone must come to their end.
TEST(SpeculationWindow, HoldsForwardsOnlyAndNoWaitForWhatComesLater) {
  for (const schedule::Kind& kind : schedule::kinds()) {
    if (kind.asynchronous) continue;
    const schedule::Shape shape{.ranks = 4, .micros = 8, .chunks_per_rank = kind.default_chunks};
    const auto table = table_of(kind.name, shape, 3);
    const std::vector<SpeculationWindow> windows = find_speculation_windows(table);
    ASSERT_EQ(windows.size(), 3u) << kind.name;
    int forwards = 0;
    for (int step = 0; step < 2; ++step) {
      const SpeculationWindow& window = windows[static_cast<std::size_t>(step)];
      std::size_t sends = 0, receives = 0;
      for (std::size_t rank = 0; rank < 4; ++rank) {
        for (std::size_t i = 0; i < window.end[rank]; ++i) {
          const schedule::Instruction& it = table.ranks[rank][i];
          if (i >= window.begin[rank]) {
            EXPECT_FALSE(does_input_gradient(it)) << kind.name;
            if (does_forward(it)) ++forwards;
          }
          if (it.micro >= 0 && table.step_of(it.micro) <= step) continue;
          sends += is_send(it.op);
          receives += is_recv(it.op);
        }
        const Unmatched unmatched = find_unmatched(table, window, step, static_cast<int>(rank));
        sends += unmatched.sends.size();
        receives += unmatched.receives.size();
      }
      EXPECT_EQ(sends, receives) << kind.name;
    }
    EXPECT_GT(forwards, 8) << kind.name;
  }
}

}  // namespace
}  // namespace trireme::pipeline
