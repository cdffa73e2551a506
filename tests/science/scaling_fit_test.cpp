// Scaling laws fitted to points whose law is known.
#include "trireme/science/scaling_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/errors.h"
#include "trireme/base/random.h"
#include "trireme/science/minimize.h"

namespace trireme::science {
namespace {

constexpr ParametricLaw kChinchilla{.floor = 1.69, .a = 406.4, .b = 410.7, .alpha = 0.34, .beta = 0.28};
constexpr ParametricLaw kRefit{.floor = 1.8172, .a = 482.01, .b = 2085.43, .alpha = 0.3478, .beta = 0.3658};

/// Budgets by sizes around the best of each, with curves that follow the law and `noise` of the final loss.
std::vector<ScalingRun> family_of_runs(const ParametricLaw& law, double noise) {
  std::vector<ScalingRun> runs;
  const Random random(3, "scaling noise");
  for (const double flops : {6e18, 1e19, 3e19, 1e20, 3e20, 1e21}) {
    for (double ratio = 0.25; ratio <= 4.01; ratio *= std::sqrt(2.0)) {
      ScalingRun run{.name = "run " + std::to_string(runs.size()), .parameters = law.best_parameters(flops) * ratio};
      run.tokens = flops / (6 * run.parameters);
      run.loss = law.loss(run.parameters, run.tokens) * (1 + noise * random.normal(runs.size()));
      for (double share = 0.01; share <= 1.0001; share *= 1.1) {
        run.curve.push_back({run.tokens * share, law.loss(run.parameters, run.tokens * share)});
      }
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

TEST(Minimize, FindsTheMinimumOfRosenbrocksValley) {
  const Minimum minimum = minimize(
      [](std::span<const double> x, std::span<double> gradient) {
        const double valley = x[1] - x[0] * x[0];
        gradient[0] = -2 * (1 - x[0]) - 400 * x[0] * valley;
        gradient[1] = 200 * valley;
        return (1 - x[0]) * (1 - x[0]) + 100 * valley * valley;
      },
      {-1.2, 1});
  EXPECT_TRUE(minimum.converged);
  EXPECT_NEAR(minimum.x[0], 1, 1e-8);
  EXPECT_NEAR(minimum.x[1], 1, 1e-8);
}

TEST(Minimize, StepsBackFromWhereTheFunctionIsNaN) {
  const Minimum minimum = minimize(
      [](std::span<const double> x, std::span<double> gradient) {  // x - log x, on x > 0
        gradient[0] = 1 - 1 / x[0];
        return x[0] - std::log(x[0]);
      },
      {0.01});
  EXPECT_NEAR(minimum.x[0], 1, 1e-6);
}

TEST(ParametricFit, FindsTheLawThatMadeThePoints) {
  for (const ParametricLaw& law : {kChinchilla, kRefit}) {
    const ParametricFit fit = fit_parametric(family_of_runs(law, 0));
    EXPECT_NEAR(fit.law.floor, law.floor, 1e-3 * law.floor);
    EXPECT_NEAR(fit.law.alpha, law.alpha, 1e-3);
    EXPECT_NEAR(fit.law.beta, law.beta, 1e-3);
    EXPECT_LT(fit.largest_residual, 1e-4);
    EXPECT_NEAR(fit.law.best_parameters(5.76e23) / law.best_parameters(5.76e23), 1, 0.01);
  }
}

TEST(ParametricFit, IsNearTheLawWithOnePercentOfNoise) {
  const auto runs = family_of_runs(kChinchilla, 0.01);
  const ParametricFit fit = fit_parametric(runs);
  const auto exponent = [](const ParametricLaw& law) { return law.beta / (law.alpha + law.beta); };
  EXPECT_NEAR(exponent(fit.law), exponent(kChinchilla), 0.05);
  const ParametricIntervals intervals = bootstrap_parametric(runs, fit.law, 100, 7);
  EXPECT_EQ(intervals.samples, 100);
  EXPECT_LE(intervals.exponent.low, exponent(fit.law));
  EXPECT_GE(intervals.exponent.high, exponent(fit.law));
  EXPECT_LE(intervals.alpha.low, kChinchilla.alpha);
  EXPECT_GE(intervals.alpha.high, kChinchilla.alpha);
  EXPECT_GT(intervals.floor.high, intervals.floor.low);
}

/// What noise takes from few runs, many that lie far apart give back.
TEST(ParametricFit, FindsExponentsToAHundredthOfManyRunsWithOnePercentOfNoise) {
  for (const ParametricLaw& law : {kChinchilla}) {  // a fit of a thousand runs takes seconds
    const Random random(5, "scaling noise of many");
    std::vector<ScalingRun> runs;
    for (double parameters = 1e7; parameters < 1e11; parameters *= 1.3) {
      for (double tokens = 1e8; tokens < 1e12; tokens *= 1.3) {
        const double noise = 1 + 0.01 * random.normal(runs.size());
        runs.push_back(
            {.name = "", .parameters = parameters, .tokens = tokens, .loss = law.loss(parameters, tokens) * noise});
      }
    }
    const ParametricFit fit = fit_parametric(runs);
    EXPECT_NEAR(fit.law.alpha, law.alpha, 0.01);
    EXPECT_NEAR(fit.law.beta, law.beta, 0.01);
    EXPECT_NEAR(fit.law.floor, law.floor, 0.03 * law.floor);
  }
}

TEST(ParametricFit, IsNotDraggedByOneBrokenRun) {
  auto runs = family_of_runs(kChinchilla, 0);
  runs[5].loss *= 1.5;  // it diverged near its end
  const ParametricFit fit = fit_parametric(runs);
  EXPECT_NEAR(fit.law.alpha, kChinchilla.alpha, 0.01);
  EXPECT_NEAR(fit.largest_residual, std::log(1.5), 0.01);
}

TEST(ScalingFits, TheThreeApproachesAgree) {
  const auto runs = family_of_runs(kChinchilla, 0);
  const double exact = kChinchilla.beta / (kChinchilla.alpha + kChinchilla.beta);
  const IsoFlopFit iso_flop = fit_iso_flop(runs);
  ASSERT_TRUE(iso_flop.parameters);
  EXPECT_EQ(iso_flop.budgets.size(), 6u);
  EXPECT_THAT(iso_flop.left_out, testing::IsEmpty());
  EXPECT_NEAR(iso_flop.parameters->exponent, exact, 0.02);
  const EnvelopeFit envelope = fit_envelope(runs);
  ASSERT_TRUE(envelope.parameters);
  EXPECT_NEAR(envelope.parameters->exponent, exact, 0.02);
  const ParametricLaw law = fit_parametric(runs).law;
  EXPECT_NEAR(law.beta / (law.alpha + law.beta), exact, 0.002);
}

TEST(ScalingFits, ABudgetWithoutAMinimumIsNamedAndLeftOut) {
  auto runs = family_of_runs(kChinchilla, 0);
  std::erase_if(runs, [](const ScalingRun& run) {  // of the smallest budget only sizes that are too large
    return run.flops() < 7e18 && run.parameters < 1.3 * kChinchilla.best_parameters(6e18);
  });
  const IsoFlopFit fit = fit_iso_flop(runs);
  EXPECT_EQ(fit.budgets.size(), 5u);
  EXPECT_THAT(fit.left_out, testing::ElementsAre(testing::HasSubstr("no minimum between its sizes")));
}

TEST(KaplanFit, FindsTheLawThatMadeThePoints) {
  const KaplanLaw law{.log_nc = std::log(6.4e13), .log_dc = std::log(1.8e13), .alpha_n = 0.076, .alpha_d = 0.103};
  std::vector<ScalingRun> runs;
  for (double parameters = 1e6; parameters < 2e9; parameters *= 4) {
    for (double tokens = 2e7; tokens < 3e10; tokens *= 4) {
      runs.push_back({.name = "", .parameters = parameters, .tokens = tokens, .loss = law.loss(parameters, tokens)});
    }
  }
  EXPECT_NEAR(law.loss(1e9, 1e30), std::pow(6.4e13 / 1e9, 0.076), 1e-6);
  const KaplanFit fit = fit_kaplan(runs);
  EXPECT_NEAR(fit.law.alpha_n, 0.076, 5e-4);
  EXPECT_NEAR(fit.law.alpha_d, 0.103, 5e-4);
  EXPECT_LT(fit.largest_residual, 1e-3);
}

TEST(ScalingFits, RunsThatCannotDetermineALawAreRefusedByName) {
  auto runs = family_of_runs(kChinchilla, 0);
  auto few = runs;
  few.resize(5);
  EXPECT_THAT(message_of<ConfigError>([&] { fit_parametric(few); }),
              testing::HasSubstr("5 runs cannot determine 5 coefficients"));
  auto same = runs;
  for (ScalingRun& run : same) run.parameters = 1e8;
  EXPECT_THAT(message_of<ConfigError>([&] { fit_parametric(same); }), testing::HasSubstr("same number of parameters"));
  runs[3].loss = std::nan("");
  EXPECT_THAT(message_of<ConfigError>([&] { fit_parametric(runs); }), testing::HasSubstr("run run 3"));
}

}  // namespace
}  // namespace trireme::science
