// science/regression.h -- the regressions that experts and gates are: weighted least squares, weighted softmax
// regression by IRLS, and least squares one sample at a time.
//
// Inputs are rows of a Matrix; a constant, where one is wanted, is a column of them. Each fit starts from the
// coefficients it is given and never makes its objective worse, which is what an M-step of EM asks for: a system that
// needs a ridge pulls towards the former coefficients, not towards zero.
// Depends on: matrix.
#pragma once

#include "trireme/science/matrix.h"

namespace trireme::science {

/// Minimises sum_t weights[t] |targets[t] - coefficients inputs[t]|^2; coefficients: outputs x inputs.
void fit_least_squares(const Matrix& inputs, std::span<const double> weights, const Matrix& targets,
                       Matrix& coefficients, RidgeUse& ridge);

/// log softmax of (coefficients input), classes at most out.size(); one row of coefficients a class.
void log_softmax(const Matrix& coefficients, std::span<const double> input, std::span<double> out);

/// sum_t weights[t] sum_k targets[t][k] log softmax_k(coefficients inputs[t]); the rows of targets sum to 1.
double softmax_log_likelihood(const Matrix& inputs, std::span<const double> weights, const Matrix& targets,
                              const Matrix& coefficients);

struct IrlsOptions {
  int iterations = 25;
  double tolerance = 1e-12;  ///< stop when the objective gains less than this, relative to the sum of weights
};

/// Maximises softmax_log_likelihood by iteratively reweighted least squares, which is Newton's method here: all classes
/// together, halving steps that overshoot. The last class is the reference: its row of coefficients (classes x inputs)
/// stays zero. With two classes this is logistic regression. Gives the number of steps taken.
int fit_softmax(const Matrix& inputs, std::span<const double> weights, const Matrix& targets, Matrix& coefficients,
                const IrlsOptions& options, RidgeUse& ridge);

/// Least squares one sample at a time (recursive least squares). After samples t = 1..T the coefficients minimise
///   sum_t w_t f_{t+1} ... f_T |y_t - U x_t|^2 + prior f_1 ... f_T |U - U_0|^2,
/// w_t the sample's weight and f_t in (0, 1] how much is kept of all that came before it.
class RecursiveLeastSquares {
 public:
  RecursiveLeastSquares(Matrix coefficients, double prior);

  const Matrix& coefficients() const { return coefficients_; }
  /// `errors`: of the prediction before the update, one an output.
  void update(std::span<const double> input, std::span<const double> errors, double weight, double keep);

 private:
  Matrix coefficients_, inverse_;  // outputs x inputs; (X^T W X)^-1
  std::vector<double> gain_;
};

}  // namespace trireme::science
