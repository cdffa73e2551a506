// unsupervised/sparse_coding.h -- min over bases B and activations A of sum |x - B a|^2 + beta |a|_1, |b_j| <= 1.
//
// Activations by Raina's parallel coordinate descent: every coordinate's own minimiser with the others as they are, all
// at once, is a direction; along it the objective is a parabola with kinks where a coordinate crosses zero, and its
// lowest point is found exactly from the sorted kinks. All examples of a block together, as products of matrices. Bases
// by projected gradient with the step 1/L, which cannot raise the objective either.
// Depends on: std.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::unsupervised {

struct SparseCoding {
  at::Tensor bases;  ///< [bases, values], each of norm at most 1
  double beta = 0.1;
};
/// Normal numbers of norm 1.
SparseCoding make_sparse_coding(std::int64_t bases, std::int64_t values, double beta, std::uint64_t seed,
                                const at::Tensor& like);

/// Of examples [n, values] and activations [n, bases].
double objective(const SparseCoding& coding, const at::Tensor& examples, const at::Tensor& activations);

/// By how much the conditions of optimality are missed, at most: |2 b_j.(B a - x) + beta sign(a_j)| where a_j is not 0,
/// max(0, |2 b_j.(B a - x)| - beta) where it is.
double kkt_residual(const SparseCoding& coding, const at::Tensor& examples, const at::Tensor& activations);

struct DescentOptions {
  std::int64_t most = 2000;  ///< iterations
  double tolerance = 1e-4;   ///< of the conditions; looked at every few iterations, which waits for a GPU
  std::int64_t look = 20;
};
/// Activations from `begin` (zero where undefined) on; `iterations` receives how many there were.
at::Tensor find_activations(const SparseCoding& coding, const at::Tensor& examples, at::Tensor begin,
                            const DescentOptions& options, std::int64_t* iterations = nullptr);

/// One iteration, in place: `gram` [bases, bases] of the bases, `products` [n, bases] of examples and bases.
void descend(at::Tensor& activations, const at::Tensor& gram, const at::Tensor& products, double beta);

/// `steps` steps of projected gradient on the bases.
void improve_bases(SparseCoding& coding, const at::Tensor& examples, const at::Tensor& activations, int steps);

}  // namespace trireme::unsupervised
