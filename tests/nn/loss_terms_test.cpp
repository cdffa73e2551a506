// Terms of a loss add up by name, in one order, over micro-batches and ranks that have different ones.
#include "trireme/nn/loss_terms.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/errors.h"
#include "trireme/comm/rank.h"

namespace trireme::nn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names_of(const std::vector<LossTerm>& terms) {
  std::vector<std::string> names;
  for (const LossTerm& term : terms) names.push_back(term.name);
  return names;
}

TEST(LossTerms, AddUpByNameWithTheMainLossFirst) {
  std::vector<LossTerm> sums;
  for (const double x : {1.0, 2.0}) {
    add_term(sums, {.name = "z_loss", .sum = 10 * x, .count = 1});
    add_term(sums, {.name = "aux_loss", .sum = 100 * x, .count = 2});
    add_term(sums, {.name = "loss", .sum = x, .count = 3});
  }
  EXPECT_THAT(names_of(sums), ElementsAre("loss", "aux_loss", "z_loss"));
  EXPECT_EQ(sum_of(sums), 3);
  EXPECT_EQ(sum_of(sums, "aux_loss"), 300);
  EXPECT_EQ(sums[0].count, 6);
  EXPECT_EQ(sum_of(sums, "nobody"), 0);
}

TEST(LossTerms, AreMeansOverWhatTheySayAndTheTotalIsTheirWeightedSum) {
  const std::vector<LossTerm> terms{
      {.name = "loss", .sum = 30, .count = 7},
      {.name = "aux_loss", .sum = 8, .weight = 0.5, .mean = LossMean::kSamples},
      {.name = "dropped", .sum = 6, .count = 24, .weight = 0, .mean = LossMean::kCount},
  };
  const LossCounts counts{.targets = 10, .samples = 4};
  EXPECT_EQ(mean_of(terms[0], counts), 3) << "targets are counted before the step, not by the term";
  EXPECT_EQ(mean_of(terms[1], counts), 2);
  EXPECT_EQ(mean_of(terms[2], counts), 0.25);
  EXPECT_EQ(total_of(terms, counts), 4);
}

TEST(LossTerms, AMetricThatIsNoNumberDoesNotTouchTheTotal) {
  const LossCounts counts{.targets = 1, .samples = 1};
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(
      total_of(std::vector<LossTerm>{{.name = "loss", .sum = 2}, {.name = "m", .sum = infinity, .weight = 0}}, counts),
      2);
  EXPECT_TRUE(std::isnan(
      total_of(std::vector<LossTerm>{{.name = "loss", .sum = 2}, {.name = "a", .sum = NAN, .weight = 0.1}}, counts)));
}

TEST(LossTerms, RefuseTwoWeightsUnderOneName) {
  std::vector<LossTerm> sums{{.name = "aux_loss", .weight = 0.5}};
  EXPECT_THAT(message_of([&] { add_term(sums, {.name = "aux_loss", .weight = 0.25}); }), HasSubstr("aux_loss"));
}

TEST(LossTerms, SettleReadsWhatIsPending) {
  std::vector<LossTerm> terms{{.name = "loss", .pending = at::full({2}, 3.0, at::kDouble)}};
  settle(terms);
  EXPECT_EQ(terms[0].sum, 3);
  EXPECT_EQ(terms[0].count, 3);
  EXPECT_FALSE(terms[0].pending.defined());
}

/// Stage 0 has an auxiliary loss, the last one the main loss, those between nothing: as in a pipeline.
TEST(LossReducer, RanksWithDifferentTermsGetThoseOfAll) {
  for (const int ranks : {1, 2, 3, 4}) {
    comm::run_ranks(ranks, [&](comm::Rank& rank) {
      LossReducer reducer(rank.world());
      for (int step = 1; step <= 3; ++step) {
        std::vector<LossTerm> terms;
        if (rank.rank() + 1 == ranks) terms.push_back({.name = "loss", .sum = 0.1 * step, .count = 5});
        if (rank.rank() == 0) add_term(terms, {.name = "aux_loss", .sum = 0.3 * step, .count = 2, .weight = 0.01});
        add_term(terms, {.name = "shared", .sum = 1, .count = 1, .weight = 0, .mean = LossMean::kCount});
        double flops = rank.rank() + 1;
        reducer.reduce({&terms, 1}, {&flops, 1});
        ASSERT_THAT(names_of(terms), ElementsAre("loss", "aux_loss", "shared"));
        EXPECT_EQ(terms[0].sum, 0.1 * step);
        EXPECT_EQ(terms[0].count, 5);
        EXPECT_EQ(terms[1].sum, 0.3 * step);
        EXPECT_EQ(terms[1].weight, 0.01);
        EXPECT_EQ(terms[2].sum, ranks);
        EXPECT_EQ(terms[2].mean, LossMean::kCount);
        EXPECT_EQ(flops, ranks * (ranks + 1) / 2);
      }
    });
  }
}

TEST(LossReducer, LearnsOfNewTermsAndChangedWeightsInLaterSteps) {
  comm::run_ranks(2, [&](comm::Rank& rank) {
    LossReducer reducer(rank.world());
    for (int step = 0; step < 4; ++step) {
      std::vector<LossTerm> terms{{.name = "loss", .sum = 1}};
      if (rank.rank() == 1 && step > 0) terms.push_back({.name = "late", .sum = 4, .weight = 1.0 / step});
      reducer.reduce({&terms, 1});
      ASSERT_EQ(terms.size(), step > 0 ? 2U : 1U);
      EXPECT_EQ(terms[0].sum, 2);
      if (step > 0) {
        EXPECT_EQ(terms[1].sum, 4);
        EXPECT_EQ(terms[1].weight, 1.0 / step);
      }
    }
  });
}

TEST(LossReducer, ReducesSeveralStepsAtOnce) {
  comm::run_ranks(2, [&](comm::Rank& rank) {
    LossReducer reducer(rank.world());
    std::vector<std::vector<LossTerm>> steps(3);
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = {{.name = "loss", .sum = static_cast<double>(i)}};
    if (rank.rank() == 0) steps[2].push_back({.name = "tail", .sum = 7});
    reducer.reduce(steps);
    EXPECT_EQ(sum_of(steps[1]), 2);
    EXPECT_EQ(sum_of(steps[2]), 4);
    EXPECT_EQ(sum_of(steps[2], "tail"), 7);
    EXPECT_EQ(sum_of(steps[0], "tail"), 0);
  });
}

TEST(LossReducer, RefusesWeightsThatRanksDoNotAgreeOn) {
  EXPECT_THROW(comm::run_ranks(2,
                               [&](comm::Rank& rank) {
                                 LossReducer reducer(rank.world());
                                 std::vector<LossTerm> terms{{.name = "loss", .weight = 1.0 + rank.rank()}};
                                 reducer.reduce({&terms, 1});
                               }),
               Error);
}

/// A second term does not change a bit of the first.
TEST(LossReducer, AddsAFurtherTermWithoutTouchingTheOthers) {
  for (const int ranks : {3, 4, 7}) {
    std::vector<double> found(2);
    for (const bool several : {false, true}) {
      comm::run_ranks(ranks, [&](comm::Rank& rank) {
        LossReducer reducer(rank.world());
        std::vector<LossTerm> terms{{.name = "loss", .sum = std::sqrt(2.0 + rank.rank())}};
        if (several) terms.push_back({.name = "aux_loss", .sum = std::sqrt(3.0)});
        reducer.reduce({&terms, 1});
        if (rank.rank() == 0) found[several ? 1 : 0] = sum_of(terms);
      });
    }
    EXPECT_EQ(found[0], found[1]) << ranks;
  }
}

}  // namespace
}  // namespace trireme::nn
