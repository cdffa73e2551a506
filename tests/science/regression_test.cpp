#include <gtest/gtest.h>

#include <cmath>

#include "tests/errors.h"
#include "tests/science/support.h"
#include "trireme/science/regression.h"

namespace trireme::science {
namespace {

TEST(Cholesky, SolvesAndNeedsNoRidgeWhereTheMatrixIsDefinite) {
  Matrix a(3, 3);
  a.values = {4, 0, 0, 2, 5, 0, 1, 3, 6};  // the lower triangle is read
  const Cholesky factor(a);
  EXPECT_EQ(factor.ridge(), 0);
  std::vector<double> x = {4 * 1 + 2 * 2 + 1 * 3, 2 * 1 + 5 * 2 + 3 * 3, 1 * 1 + 3 * 2 + 6 * 3};
  factor.solve(x);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(x[i], static_cast<double>(i + 1), 1e-13);
}

TEST(Cholesky, ReportsTheRidgeThatASingularMatrixNeeds) {
  Matrix a(2, 2);
  a.values = {1, 1, 1, 1};
  const Cholesky factor(a);
  EXPECT_GT(factor.ridge(), 0);
  EXPECT_LE(factor.ridge(), 1e-10);
  RidgeUse use;
  use.note(0);
  use.note(factor.ridge());
  EXPECT_EQ(use.systems, 1);
  EXPECT_EQ(use.largest, factor.ridge());
  EXPECT_EQ(Cholesky(Matrix(2, 2)).ridge(), 1e-12) << "nothing is known: a ridge alone";
}

/// Least squares by Householder's reflections: no normal equations.
std::vector<double> least_squares_by_qr(Matrix a, std::vector<double> b) {
  const std::size_t n = a.rows, p = a.columns;
  for (std::size_t j = 0; j < p; ++j) {
    double norm = 0;
    for (std::size_t i = j; i < n; ++i) norm += a(i, j) * a(i, j);
    norm = a(j, j) > 0 ? -std::sqrt(norm) : std::sqrt(norm);
    std::vector<double> v(n, 0);
    for (std::size_t i = j; i < n; ++i) v[i] = a(i, j);
    v[j] -= norm;
    const double length = dot(v, v);
    for (std::size_t k = j; k < p; ++k) {
      double along = 0;
      for (std::size_t i = j; i < n; ++i) along += v[i] * a(i, k);
      for (std::size_t i = j; i < n; ++i) a(i, k) -= 2 * along / length * v[i];
    }
    const double along = dot(v, b);
    for (std::size_t i = j; i < n; ++i) b[i] -= 2 * along / length * v[i];
  }
  std::vector<double> x(p);
  for (std::size_t j = p; j-- > 0;) {
    double sum = b[j];
    for (std::size_t k = j + 1; k < p; ++k) sum -= a(j, k) * x[k];
    x[j] = sum / a(j, j);
  }
  return x;
}

TEST(LeastSquares, WeightedEqualsAnOrthogonalFactorisation) {
  const Random random(3, "noise");
  const Samples samples = draw_samples(60, 4, 1, 3, [&](std::size_t t, std::span<const double> x) {
    return std::vector{1.5 * x[0] - x[1] * x[2] + 0.3 + random.normal(t)};
  });
  std::vector<double> weights(60), right(60);
  Matrix scaled = samples.inputs;
  for (std::size_t t = 0; t < 60; ++t) {
    weights[t] = random.uniform(t);
    for (double& value : scaled.row(t)) value *= std::sqrt(weights[t]);
    right[t] = std::sqrt(weights[t]) * samples.targets(t, 0);
  }
  Matrix fitted(1, 5);
  RidgeUse ridge;
  fit_least_squares(samples.inputs, weights, samples.targets, fitted, ridge);
  const std::vector<double> expected = least_squares_by_qr(scaled, right);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(fitted(0, i), expected[i], 1e-12);
  EXPECT_EQ(ridge.systems, 0);
}

TEST(LeastSquares, WithColumnsThatAreTheSameStaysNearWhereItStarted) {
  Samples samples =
      draw_samples(20, 2, 1, 4, [](std::size_t, std::span<const double> x) { return std::vector{2 * x[0]}; });
  for (std::size_t t = 0; t < 20; ++t) samples.inputs(t, 1) = samples.inputs(t, 0);
  Matrix fitted(1, 3);
  fitted(0, 0) = 5, fitted(0, 1) = -5;
  RidgeUse ridge;
  fit_least_squares(samples.inputs, std::vector<double>(20, 1.0), samples.targets, fitted, ridge);
  EXPECT_EQ(ridge.systems, 1);
  EXPECT_NEAR(fitted(0, 0) + fitted(0, 1), 2, 1e-6) << "what the data say";
  EXPECT_NEAR(fitted(0, 0) - fitted(0, 1), 10, 1e-3) << "what they do not say: as it was";
}

/// Newton's method on logistic regression, written for one column and a constant by hand.
std::pair<double, double> logistic_by_newton(const Samples& samples, const std::vector<double>& weights) {
  double slope = 0, constant = 0;
  for (int step = 0; step < 60; ++step) {
    double g0 = 0, g1 = 0, h00 = 0, h01 = 0, h11 = 0;
    for (std::size_t t = 0; t < samples.count(); ++t) {
      const double x = samples.inputs(t, 0), p = 1 / (1 + std::exp(-(slope * x + constant)));
      const double e = weights[t] * (samples.targets(t, 0) - p), w = weights[t] * p * (1 - p);
      g0 += e * x, g1 += e, h00 += w * x * x, h01 += w * x, h11 += w;
    }
    const double determinant = h00 * h11 - h01 * h01;
    slope += (h11 * g0 - h01 * g1) / determinant;
    constant += (h00 * g1 - h01 * g0) / determinant;
  }
  return {slope, constant};
}

TEST(Softmax, IrlsOfTwoClassesIsLogisticRegressionByNewton) {
  const Random random(5, "classes");
  const Samples samples = draw_samples(200, 1, 2, 5, [&](std::size_t t, std::span<const double> x) {
    const double p = 1 / (1 + std::exp(-(1.2 * x[0] - 0.4)));
    return one_hot(random.uniform(t) < p ? 0 : 1, 2);
  });
  std::vector<double> weights(200);
  for (std::size_t t = 0; t < 200; ++t) weights[t] = 0.1 + random.uniform(1000 + t);
  const auto [slope, constant] = logistic_by_newton(samples, weights);
  Matrix fitted(2, 2);
  RidgeUse ridge;
  const int steps = fit_softmax(samples.inputs, weights, samples.targets, fitted, {}, ridge);
  EXPECT_NEAR(fitted(0, 0), slope, 1e-8);
  EXPECT_NEAR(fitted(0, 1), constant, 1e-8);
  EXPECT_EQ(fitted(1, 0), 0) << "the reference";
  EXPECT_LE(steps, 10) << "Newton's method converges quadratically";
}

TEST(Softmax, GradientIsZeroAtTheFitForSoftTargetsOfFourClasses) {
  const Random random(6, "targets");
  const Samples samples = draw_samples(150, 3, 4, 6, [&](std::size_t t, std::span<const double>) {
    std::vector<double> shares(4);
    double sum = 0;
    for (std::size_t k = 0; k < 4; ++k) sum += shares[k] = random.uniform(4 * t + k);
    for (double& share : shares) share /= sum;
    return shares;
  });
  const std::vector<double> weights(150, 0.7);
  Matrix fitted(4, 4);
  RidgeUse ridge;
  fit_softmax(samples.inputs, weights, samples.targets, fitted, {}, ridge);
  const double best = softmax_log_likelihood(samples.inputs, weights, samples.targets, fitted);
  for (std::size_t i = 0; i < 12; ++i) {
    for (const double step : {-1e-3, 1e-3}) {
      Matrix other = fitted;
      other.values[i] += step;
      EXPECT_LT(softmax_log_likelihood(samples.inputs, weights, samples.targets, other), best);
    }
  }
}

TEST(Softmax, NeverGetsWorseWhereClassesAreSeparable) {
  const Samples samples =
      draw_samples(50, 1, 2, 7, [](std::size_t, std::span<const double> x) { return one_hot(x[0] > 0.3 ? 0 : 1, 2); });
  const std::vector<double> weights(50, 1.0);
  Matrix fitted(2, 2);
  RidgeUse ridge;
  double before = softmax_log_likelihood(samples.inputs, weights, samples.targets, fitted);
  for (int step = 0; step < 60; ++step) {
    fit_softmax(samples.inputs, weights, samples.targets, fitted, {.iterations = 1}, ridge);
    const double now = softmax_log_likelihood(samples.inputs, weights, samples.targets, fitted);
    ASSERT_GE(now, before) << step;
    ASSERT_TRUE(std::isfinite(now));
    before = now;
  }
  EXPECT_GT(before, -1e-6) << "the likelihood goes to 1, the weights without bound";
}

TEST(RecursiveLeastSquares, WithoutForgettingEqualsBatchWeightedLeastSquares) {
  const Random random(8, "noise");
  const std::size_t count = 300;
  const Samples samples = draw_samples(count, 3, 2, 8, [&](std::size_t t, std::span<const double> x) {
    return std::vector{x[0] - 2 * x[2] + random.normal(2 * t), std::sin(x[1]) + random.normal(2 * t + 1)};
  });
  constexpr double kPrior = 0.25;
  RecursiveLeastSquares online(Matrix(2, 4), kPrior);
  Samples with_prior{.inputs = Matrix(count + 4, 4), .targets = Matrix(count + 4, 2)};
  std::vector<double> weights(count + 4, kPrior), errors(2);
  for (std::size_t t = 0; t < count; ++t) {
    weights[t] = random.uniform(5000 + t);
    for (std::size_t k = 0; k < 2; ++k) {
      errors[k] = samples.targets(t, k) - dot(online.coefficients().row(k), samples.inputs.row(t));
      with_prior.targets(t, k) = samples.targets(t, k);
    }
    std::ranges::copy(samples.inputs.row(t), with_prior.inputs.row(t).begin());
    online.update(samples.inputs.row(t), errors, weights[t], 1);
  }
  for (std::size_t i = 0; i < 4; ++i) with_prior.inputs(count + i, i) = 1;  // the prior is a sample of each coefficient
  Matrix batch(2, 4);
  RidgeUse ridge;
  fit_least_squares(with_prior.inputs, weights, with_prior.targets, batch, ridge);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(online.coefficients().values[i], batch.values[i], 1e-11);
}

TEST(RecursiveLeastSquares, ForgettingWeightsSamplesByTheirAge) {
  constexpr double kKeep = 0.95;
  const std::size_t count = 120;
  const Random random(9, "noise");
  const Samples samples = draw_samples(count, 2, 1, 9, [&](std::size_t t, std::span<const double> x) {
    return std::vector{(t < 60 ? 1 : -3) * x[0] + 0.1 * random.normal(t)};
  });
  RecursiveLeastSquares online(Matrix(1, 3), 1e-6);
  std::vector<double> weights(count);
  for (std::size_t t = 0; t < count; ++t) {
    const double error = samples.targets(t, 0) - dot(online.coefficients().row(0), samples.inputs.row(t));
    online.update(samples.inputs.row(t), std::span(&error, 1), 1, kKeep);
    weights[t] = std::pow(kKeep, static_cast<double>(count - 1 - t));
  }
  Matrix batch(1, 3);
  RidgeUse ridge;
  fit_least_squares(samples.inputs, weights, samples.targets, batch, ridge);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(online.coefficients()(0, i), batch(0, i), 1e-6);
  EXPECT_NEAR(batch(0, 0), -3, 0.3) << "it follows what changed";
}

}  // namespace
}  // namespace trireme::science
