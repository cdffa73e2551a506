// science/matrix.h -- small dense matrices in double, and symmetric systems by Cholesky's method.
//
// For regressions with up to a few hundred coefficients; what trains networks is in `kernels`.
// Depends on: base.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace trireme::science {

/// Row after row.
struct Matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values;

  Matrix() = default;
  Matrix(std::size_t row_count, std::size_t column_count)
      : rows(row_count), columns(column_count), values(row_count * column_count) {}

  double& operator()(std::size_t row, std::size_t column) { return values[row * columns + column]; }
  double operator()(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
  std::span<double> row(std::size_t index) { return {values.data() + index * columns, columns}; }
  std::span<const double> row(std::size_t index) const { return {values.data() + index * columns, columns}; }
  bool operator==(const Matrix&) const = default;
};

double dot(std::span<const double> a, std::span<const double> b);

/// What had to be added to diagonals so that systems could be solved: a fit says so, and how much.
struct RidgeUse {
  int systems = 0;
  double largest = 0;
  void note(double ridge);
  void merge(const RidgeUse& other);
};

/// The factor L of a symmetric positive definite matrix, A = L L^T, of which the lower triangle is read. Where A is
/// singular to working precision a ridge is added to its diagonal: the smallest power of ten times the largest diagonal
/// element, from 1e-12 on, that makes it definite. ridge() says which; 0 when none was needed.
class Cholesky {
 public:
  explicit Cholesky(Matrix matrix);
  double ridge() const { return ridge_; }
  /// In place: `right` becomes the solution.
  void solve(std::span<double> right) const;

 private:
  Matrix lower_;
  double ridge_ = 0;
};

}  // namespace trireme::science
