#include "trireme/plan/scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

namespace trireme::plan {
namespace {

TEST(Chinchilla, SplitsBudgetsAsItsClosedFormDoes) {
  struct Row {
    double flops, parameters, tokens, loss;
  };
  const LossLaw& law = loss_laws().front();
  for (const Row& row : {Row{1e18, 8.0582e7, 2.0683e9, 3.5353}, Row{1e21, 1.8242e9, 9.1363e10, 2.3289},
                         Row{5.76e23, 3.2190e10, 2.9823e12, 1.9307}, Row{3.8e25, 2.1348e11, 2.9667e13, 1.8165}}) {
    const ComputeOptimal best = law.best(row.flops);
    EXPECT_NEAR(best.parameters, row.parameters, 1e-4 * row.parameters);
    EXPECT_NEAR(best.tokens, row.tokens, 1e-4 * row.tokens);
    EXPECT_NEAR(best.loss, row.loss, 1e-4);
    EXPECT_DOUBLE_EQ(6 * best.parameters * best.tokens, row.flops);
  }
}

TEST(Chinchilla, NoOtherSplitIsBetter) {
  for (const LossLaw& law : loss_laws()) {
    for (const double flops : {1e19, 1e22, 1e25}) {
      const ComputeOptimal best = law.best(flops);
      for (const double factor : {0.5, 0.9, 0.99, 1.01, 1.1, 2.0})
        EXPECT_GT(law.with_parameters(flops, best.parameters * factor).loss, best.loss);
    }
  }
}

TEST(Chinchilla, FittedAgainTakesTwentyTokensForEachParameter) {
  const ComputeOptimal best = loss_laws()[1].best(5.76e23);
  EXPECT_NEAR(best.tokens / best.parameters, 20, 6);
}

TEST(Kaplan, HasThePublishedLosses) {
  EXPECT_NEAR(kaplan::loss_of_parameters(1e6), 4.0159, 1e-4);
  EXPECT_NEAR(kaplan::loss_of_parameters(1.75e11), 1.6044, 1e-4);
  EXPECT_NEAR(kaplan::loss_of_tokens(1e8), 3.5041, 1e-4);
  EXPECT_NEAR(kaplan::loss_of_tokens(3e11), 1.6378, 1e-4);
  EXPECT_NEAR(kaplan::loss_of_compute(0.1 * kPetaflopDay), 2.9824, 1e-4);
  EXPECT_NEAR(kaplan::loss_of_compute(3640 * kPetaflopDay), 1.7641, 1e-4);
}

TEST(Kaplan, JointLawBecomesEachSingleOneWithoutTheOtherLimit) {
  EXPECT_NEAR(kaplan::loss(1e9, 1e30), std::pow(6.4e13 / 1e9, 0.076), 1e-6);
  EXPECT_NEAR(kaplan::loss(1e30, 1e10), std::pow(1.8e13 / 1e10, 0.103), 1e-6);
}

TEST(Kaplan, SpendsOnSizeFirst) {
  const kaplan::Budget one = kaplan::best(kPetaflopDay), thousand = kaplan::best(1000 * kPetaflopDay);
  EXPECT_NEAR(thousand.parameters / one.parameters, std::pow(1000, 0.73), 1e-9 * std::pow(1000, 0.73));
  EXPECT_NEAR(thousand.tokens / one.tokens, std::pow(1000, 0.27), 1e-9);
}

TEST(Kaplan, SpendsTheBudgetAndNoMore) {
  for (const double days : {1e-3, 1.0, 3640.0}) {
    for (const std::optional<double> batch : {std::optional<double>(), {1e3}, {1e6}, {1e8}}) {
      const double flops = days * kPetaflopDay;
      const kaplan::Budget budget = kaplan::best(flops, batch);
      EXPECT_NEAR(6 * budget.parameters * budget.tokens, flops, 1e-12 * flops);
      EXPECT_NEAR(budget.steps * budget.batch_tokens, budget.tokens, 1e-12 * budget.tokens);
      // C = C_min (1 + B / B_crit), and the loss is that of C_min.
      const double critical = kaplan::critical_batch(budget.loss);
      EXPECT_NEAR(budget.min_flops * (1 + budget.batch_tokens / critical), flops, 1e-9 * flops);
      EXPECT_EQ(budget.loss, kaplan::loss_of_compute(budget.min_flops));
    }
  }
}

TEST(Kaplan, SmallBatchesReachALowerLossWithTheSameCompute) {
  const double flops = 100 * kPetaflopDay;
  const kaplan::Budget critical = kaplan::best(flops), small = kaplan::best(flops, 1.0);
  EXPECT_DOUBLE_EQ(critical.min_flops, flops / 2);
  EXPECT_NEAR(small.min_flops, flops, 1e-6 * flops);
  EXPECT_LT(small.loss, critical.loss);
  EXPECT_GT(small.steps, 1e6 * critical.steps);
}

/// Table 6 gives all of them by C_min, at the critical batch and with two digits.
TEST(Kaplan, HasTheOptimaOfThePapersTable) {
  for (const double days : {0.01, 1.0, 100.0, 10000.0}) {
    const kaplan::Budget budget = kaplan::best(2 * days * kPetaflopDay);
    EXPECT_DOUBLE_EQ(budget.min_flops, days * kPetaflopDay);
    EXPECT_NEAR(budget.parameters / (1.3e9 * std::pow(days, 0.73)), 1, 1e-12);
    EXPECT_NEAR(budget.tokens / (2e10 * std::pow(days, 0.27)), 1, 0.12);
    EXPECT_NEAR(budget.batch_tokens / (2e6 * std::pow(days, 0.24)), 1, 0.10);
    // At twice the least steps, which the table has.
    EXPECT_NEAR(budget.steps / 2 / (5.4e3 * std::pow(days, 0.03)), 1, 0.12);
  }
}

TEST(CriticalBatch, LiesOnTheHyperbola) {
  for (const BatchPoint& point : batch_curve(1e6)) EXPECT_NEAR((point.steps - 1) * (point.examples - 1), 1, 1e-12);
  const BatchPoint at = batch_point(1e6, 1e6);
  EXPECT_EQ(at.steps, 2);
  EXPECT_EQ(at.examples, 2);
  // 2e8 tokens / L^4.76: about 7.4M at a loss of 2.
  EXPECT_NEAR(kaplan::critical_batch(2.0), 2e8 / std::pow(2.0, 1 / 0.21), 1);
  EXPECT_NEAR(kaplan::critical_batch(2.0), 7.37e6, 0.01e6);
}

TEST(LittlesLaw, IsRateTimesLatency) { EXPECT_DOUBLE_EQ(in_flight(50e9, 5e-6), 250e3); }

}  // namespace
}  // namespace trireme::plan
