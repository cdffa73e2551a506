#include "trireme/science/matrix.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme::science {

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void RidgeUse::note(double ridge) {
  if (ridge <= 0) return;
  ++systems;
  largest = std::max(largest, ridge);
}

void RidgeUse::merge(const RidgeUse& other) {
  systems += other.systems;
  largest = std::max(largest, other.largest);
}

namespace {

/// False when a pivot is lost in the rounding of the element it came from.
bool factorize(const Matrix& matrix, double ridge, Matrix& lower) {
  constexpr double kLost = 1e-14;
  const std::size_t n = matrix.rows;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      const double sum = dot(lower.row(i).first(j), lower.row(j).first(j));
      if (i != j) {
        lower(i, j) = (matrix(i, j) - sum) / lower(j, j);
        continue;
      }
      const double pivot = matrix(i, i) + ridge - sum;
      if (!(pivot > kLost * matrix(i, i)) || !std::isfinite(pivot)) return false;
      lower(i, i) = std::sqrt(pivot);
    }
  }
  return true;
}

}  // namespace

Cholesky::Cholesky(Matrix matrix) : lower_(matrix.rows, matrix.rows) {
  TRIREME_CHECK(matrix.rows == matrix.columns, "a system of {} x {}", matrix.rows, matrix.columns);
  double largest = 0;
  for (std::size_t i = 0; i < matrix.rows; ++i) largest = std::max(largest, std::abs(matrix(i, i)));
  TRIREME_CHECK(std::isfinite(largest), "a system with NaN or Inf on its diagonal");
  if (factorize(matrix, 0, lower_)) return;
  if (largest == 0) largest = 1;  // nothing known of any coefficient: they all stay where they are
  for (double relative = 1e-12; relative < 10; relative *= 10) {
    ridge_ = relative * largest;
    if (factorize(matrix, ridge_, lower_)) return;
  }
  TRIREME_CHECK(false, "a system of {} rows is not positive semidefinite", matrix.rows);
}

void Cholesky::solve(std::span<double> right) const {
  const std::size_t n = lower_.rows;
  for (std::size_t i = 0; i < n; ++i) {
    right[i] = (right[i] - dot(lower_.row(i).first(i), right.first(i))) / lower_(i, i);
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t j = i + 1; j < n; ++j) right[i] -= lower_(j, i) * right[j];
    right[i] /= lower_(i, i);
  }
}

}  // namespace trireme::science
