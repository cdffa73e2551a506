// ps/logistic.h -- L2-regularised logistic regression in portions: what L-BFGS on shards minimises on a libsvm file.
//
//   minimise  F(w) = sum_i log(1 + exp(-y_i x_i . w)) + lambda / 2 |w|^2
//
// A portion is a stretch of rows; the first one adds the norm. Whoever computes a portion finds the same bits.
// Depends on: formats (libsvm), sandblaster.h.
#pragma once

#include "trireme/formats/libsvm.h"
#include "trireme/ps/sandblaster.h"

namespace trireme::ps {

/// `samples` are borrowed.
PortionLoss logistic_portions(const formats::SparseSamples& samples, double lambda, int portions);
/// The share of rows that the weights classify right.
double logistic_accuracy(const formats::SparseSamples& samples, std::span<const double> weights);

}  // namespace trireme::ps
