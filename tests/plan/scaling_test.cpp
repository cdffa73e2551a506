#include "trireme/plan/scaling.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme::plan {
namespace {

TEST(Chinchilla, SplitsBudgetsAsItsClosedFormDoes) {
  struct Row {
    double flops, parameters, tokens, loss;
  };
  const LossLaw& law = loss_laws().front();
  for (const Row& row : {Row{1e18, 8.0582e7, 2.0683e9, 3.5353}, Row{1e21, 1.8242e9, 9.1363e10, 2.3289},
                         Row{5.76e23, 3.2190e10, 2.9823e12, 1.9307}, Row{3.8e25, 2.1348e11, 2.9667e13, 1.8165}}) {
    const Allocation best = law.best(row.flops);
    EXPECT_NEAR(best.parameters, row.parameters, 1e-4 * row.parameters);
    EXPECT_NEAR(best.tokens, row.tokens, 1e-4 * row.tokens);
    EXPECT_NEAR(best.loss, row.loss, 1e-4);
    EXPECT_DOUBLE_EQ(6 * best.parameters * best.tokens, row.flops);
  }
}

TEST(Chinchilla, NoOtherSplitIsBetter) {
  for (const LossLaw& law : loss_laws()) {
    for (const double flops : {1e19, 1e22, 1e25}) {
      const Allocation best = law.best(flops);
      for (const double factor : {0.5, 0.9, 0.99, 1.01, 1.1, 2.0})
        EXPECT_GT(law.with_parameters(flops, best.parameters * factor).loss, best.loss);
    }
  }
}

TEST(Chinchilla, FittedAgainTakesTwentyTokensForEachParameter) {
  const Allocation best = loss_laws()[1].best(5.76e23);
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
  EXPECT_NEAR(thousand.parameters / one.parameters, std::pow(1000, 0.73), 1);
  EXPECT_NEAR(thousand.tokens / one.tokens, std::pow(1000, 0.27), 0.01);
  // 6 N D is the budget, to the rounding of the paper's table.
  EXPECT_NEAR(6 * thousand.parameters * thousand.tokens, 1000 * kPetaflopDay, 0.9 * 1000 * kPetaflopDay);
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
