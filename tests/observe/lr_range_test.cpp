#include "trireme/observe/lr_range.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme::observe {
namespace {

/// A loss that falls around a rate of 1e-3 and rises beyond 0.1.
std::vector<StepRecord> range_steps(int count) {
  std::vector<StepRecord> steps;
  for (int i = 0; i < count; ++i) {
    StepRecord step;
    step.step = i + 1;
    step.lr = 1e-6 * std::pow(10, 6.0 * i / count);
    const double log_rate = std::log10(step.lr);
    step.loss = 4 - 2 / (1 + std::exp(-4 * (log_rate + 3))) + std::exp(6 * (log_rate + 1)) * 10;
    steps.push_back(step);
  }
  return steps;
}

TEST(LrRange, FindsWhereTheLossFallsFastest) {
  const auto range = lr_range_of(range_steps(300));
  ASSERT_TRUE(range);
  EXPECT_NEAR(std::log10(range->steepest), -3, 0.4);
  EXPECT_GT(range->lowest, range->steepest);
  EXPECT_LT(range->lowest, 0.2);
  EXPECT_LT(range->points.size(), 300U) << "what came after divergence is left out";
}

TEST(LrRange, IsOfRangeTestsOnly) {
  std::vector<StepRecord> steps = range_steps(50);
  for (StepRecord& step : steps) step.lr = 1e-3;
  EXPECT_FALSE(lr_range_of(steps));
  steps = range_steps(50);
  steps[30].lr *= 1.01;
  EXPECT_FALSE(lr_range_of(steps));
  EXPECT_FALSE(lr_range_of(range_steps(5)));
}

}  // namespace
}  // namespace trireme::observe
