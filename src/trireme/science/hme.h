// science/hme.h -- hierarchical mixtures of experts (Jordan and Jacobs 1994): a tree of softmax gates over experts.
//
// A gate sends a sample down its branches with probabilities softmax(V x); an expert at a leaf gives a normal density
// around U x, or the class probabilities softmax(U x). The model's density is the sum over all leaves of the product of
// the gates on the way there times the expert's. Gates and experts all see the whole input, with a constant.
// fit_by_em (hme_fit.h) fits one by expectation maximisation, OnlineHme one sample at a time.
// Depends on: regression, table.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/science/matrix.h"
#include "trireme/science/table.h"

namespace trireme::science {

struct Expert {
  Matrix weights;                 // outputs x inputs
  std::vector<double> variances;  // kGaussian: one an output
  bool operator==(const Expert&) const = default;
};

struct Hme {
  Columns columns;
  std::vector<int> branching;  // of each level of gates; empty: one expert and no gate
  std::vector<Matrix> gates;   // level after level, left to right; branches x inputs, the last row is zero
  std::vector<Expert> experts;

  /// All weights zero, variances one. ConfigError for a tree of more than 4096 experts.
  static Hme make(Columns columns, std::vector<int> branching);
  std::size_t inputs() const { return columns.inputs.size() + 1; }
  std::size_t parameters() const;
  bool operator==(const Hme&) const = default;
};

/// Where the gates of a level lie: gate i's branch j leads to node i * branches + j of the next one.
struct Level {
  std::size_t first_gate = 0, gates = 1, branches = 1;
};
std::vector<Level> levels_of(const std::vector<int>& branching);

/// What is computed for one sample; memory that is used again for the next.
struct Forward {
  std::vector<std::vector<double>> log_gates;  // [gate][branch]
  std::vector<double> log_path;                // [expert]: sum of the log gates on the way
  Matrix means;                                // [expert][output]: mean, or class probabilities
  std::vector<double> log_density;             // [expert]: of the target
  std::vector<std::vector<double>> posterior;  // [gate][branch]: given that the sample passes the gate
  std::vector<double> responsibility;          // [node: gates, then experts]: posterior that the sample passes it
};

/// Gates and means of experts for an input.
void forward(const Hme& model, std::span<const double> input, Forward& out);
/// After forward(): posteriors given the target (the E-step). Gives the sample's log-likelihood.
double posteriors(const Hme& model, std::span<const double> target, Forward& out);
/// After forward(): the mixture's mean, or class probabilities.
std::vector<double> mean_of(const Forward& at);

/// How good predictions are.
struct Quality {
  double log_likelihood = 0;  ///< mean over samples, in nats
  /// kGaussian: squared error relative to that of always predicting the mean of these targets, averaged over outputs
  /// (the measure of Jordan and Jacobs). kMultinomial: the share of wrong classes.
  double error = 0;
};
/// From log-likelihoods and predictions of `targets`, row by row.
Quality quality_of(Family family, const Matrix& targets, const Matrix& predictions, double log_likelihood_sum);
Quality evaluate(const Hme& model, const Samples& samples);

std::string to_json(const Hme& model);
/// FormatError or ConfigError with `source` when it is no such model.
Hme hme_from_json(std::string_view text, std::string_view source);

}  // namespace trireme::science
