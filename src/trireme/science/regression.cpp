#include "trireme/science/regression.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme::science {
namespace {

/// matrix += weight x x^T, lower triangle.
void add_outer(Matrix& matrix, std::span<const double> x, double weight) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double scaled = weight * x[i];
    double* row = matrix.values.data() + i * matrix.columns;
    for (std::size_t j = 0; j <= i; ++j) row[j] += scaled * x[j];
  }
}

void add_scaled(std::span<double> to, std::span<const double> x, double factor) {
  for (std::size_t i = 0; i < x.size(); ++i) to[i] += factor * x[i];
}

}  // namespace

void fit_least_squares(const Matrix& inputs, std::span<const double> weights, const Matrix& targets,
                       Matrix& coefficients, RidgeUse& ridge) {
  const std::size_t p = inputs.columns, outputs = targets.columns;
  Matrix normal(p, p), right(outputs, p);
  for (std::size_t t = 0; t < inputs.rows; ++t) {
    if (weights[t] <= 0) continue;
    const auto x = inputs.row(t);
    add_outer(normal, x, weights[t]);
    for (std::size_t k = 0; k < outputs; ++k) {
      add_scaled(right.row(k), x, weights[t] * (targets(t, k) - dot(coefficients.row(k), x)));
    }
  }
  // For the step from the former coefficients: their residuals are on the right-hand side.
  const Cholesky factor(std::move(normal));
  ridge.note(factor.ridge());
  for (std::size_t k = 0; k < outputs; ++k) {
    factor.solve(right.row(k));
    add_scaled(coefficients.row(k), right.row(k), 1);
  }
}

void log_softmax(const Matrix& coefficients, std::span<const double> input, std::span<double> out) {
  double largest = -INFINITY;
  for (std::size_t k = 0; k < coefficients.rows; ++k) {
    out[k] = dot(coefficients.row(k), input);
    largest = std::max(largest, out[k]);
  }
  double sum = 0;
  for (std::size_t k = 0; k < coefficients.rows; ++k) sum += std::exp(out[k] - largest);
  const double total = largest + std::log(sum);
  for (std::size_t k = 0; k < coefficients.rows; ++k) out[k] -= total;
}

double softmax_log_likelihood(const Matrix& inputs, std::span<const double> weights, const Matrix& targets,
                              const Matrix& coefficients) {
  std::vector<double> logs(coefficients.rows);
  double sum = 0;
  for (std::size_t t = 0; t < inputs.rows; ++t) {
    if (weights[t] <= 0) continue;
    log_softmax(coefficients, inputs.row(t), logs);
    double sample = 0;
    for (std::size_t k = 0; k < logs.size(); ++k) {
      if (targets(t, k) > 0) sample += targets(t, k) * logs[k];
    }
    sum += weights[t] * sample;
  }
  return sum;
}

namespace {

/// Newton's direction for all classes but the last: the Hessian is sum_t w_t (p_k [k = l] - p_k p_l) x x^T.
std::vector<double> newton_direction(const Matrix& inputs, std::span<const double> weights, const Matrix& targets,
                                     const Matrix& coefficients, RidgeUse& ridge) {
  const std::size_t p = inputs.columns, free = coefficients.rows - 1;
  Matrix hessian(free * p, free * p), block(p, p);
  std::vector<double> gradient(free * p), probabilities(coefficients.rows);
  // Pair by pair of classes: the products x x^T of one pair are summed in one small block that stays in cache.
  std::vector<Matrix> blocks(free * (free + 1) / 2, block);
  for (std::size_t t = 0; t < inputs.rows; ++t) {
    if (weights[t] <= 0) continue;
    const auto x = inputs.row(t);
    log_softmax(coefficients, x, probabilities);
    for (double& value : probabilities) value = std::exp(value);
    for (std::size_t k = 0, pair = 0; k < free; ++k) {
      add_scaled(std::span(gradient).subspan(k * p, p), x, weights[t] * (targets(t, k) - probabilities[k]));
      for (std::size_t l = 0; l <= k; ++l, ++pair) {
        const double curvature = probabilities[k] * ((k == l ? 1.0 : 0.0) - probabilities[l]);
        add_outer(blocks[pair], x, weights[t] * curvature);
      }
    }
  }
  for (std::size_t k = 0, pair = 0; k < free; ++k) {
    for (std::size_t l = 0; l <= k; ++l, ++pair) {
      for (std::size_t i = 0; i < p; ++i) {
        for (std::size_t j = 0; j <= i; ++j) {
          hessian(k * p + i, l * p + j) = hessian(k * p + j, l * p + i) = blocks[pair](i, j);
        }
      }
    }
  }
  const Cholesky factor(std::move(hessian));
  ridge.note(factor.ridge());
  factor.solve(gradient);
  return gradient;
}

}  // namespace

int fit_softmax(const Matrix& inputs, std::span<const double> weights, const Matrix& targets, Matrix& coefficients,
                const IrlsOptions& options, RidgeUse& ridge) {
  constexpr int kHalvings = 40;
  double total = 0;
  for (const double weight : weights) total += weight;
  if (total <= 0 || coefficients.rows < 2) return 0;
  double now = softmax_log_likelihood(inputs, weights, targets, coefficients);
  int steps = 0;
  while (steps < options.iterations) {
    const std::vector<double> direction = newton_direction(inputs, weights, targets, coefficients, ridge);
    double length = 1, reached = now;
    Matrix tried = coefficients;
    for (int half = 0; half < kHalvings; ++half, length /= 2) {
      tried = coefficients;
      add_scaled(std::span(tried.values).first(direction.size()), direction, length);
      reached = softmax_log_likelihood(inputs, weights, targets, tried);
      if (reached >= now) break;
    }
    if (!(reached >= now)) break;  // at the maximum, to rounding
    const double gained = reached - now;
    coefficients = std::move(tried);
    now = reached;
    ++steps;
    if (gained <= options.tolerance * total) break;
  }
  return steps;
}

RecursiveLeastSquares::RecursiveLeastSquares(Matrix coefficients, double prior)
    : coefficients_(std::move(coefficients)),
      inverse_(coefficients_.columns, coefficients_.columns),
      gain_(coefficients_.columns) {
  TRIREME_CHECK(prior > 0, "a prior of {}: coefficients of which nothing is known have no least squares", prior);
  for (std::size_t i = 0; i < inverse_.rows; ++i) inverse_(i, i) = 1 / prior;
}

void RecursiveLeastSquares::update(std::span<const double> input, std::span<const double> errors, double weight,
                                   double keep) {
  const std::size_t p = input.size();
  if (weight > 0) {
    // R <- (R - R x x^T R / (keep / w + x^T R x)) / keep, and the gain is the new R times w x.
    for (std::size_t i = 0; i < p; ++i) gain_[i] = dot(inverse_.row(i), input);
    const double scale = 1 / (keep / weight + dot(gain_, input));
    for (std::size_t k = 0; k < coefficients_.rows; ++k) add_scaled(coefficients_.row(k), gain_, scale * errors[k]);
    for (std::size_t i = 0; i < p; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        // Both halves from one value: rounding would let them drift apart, and R would stop being positive definite.
        inverse_(i, j) = inverse_(j, i) = inverse_(i, j) - scale * gain_[i] * gain_[j];
      }
    }
  }
  if (keep < 1) {
    for (double& value : inverse_.values) value /= keep;
  }
}

}  // namespace trireme::science
