#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/permutation.h"
#include "trireme/science/hme_fit.h"

namespace trireme::science {
namespace {

Matrix one_row(const Matrix& matrix, std::size_t row) {
  Matrix out(1, matrix.columns);
  std::ranges::copy(matrix.row(row), out.values.begin());
  return out;
}

/// The coefficients of a softmax, a row each; the last row is the reference and stays zero.
std::vector<RecursiveLeastSquares> softmax_rows(const Matrix& weights, double prior) {
  std::vector<RecursiveLeastSquares> rows;
  for (std::size_t k = 0; k + 1 < weights.rows; ++k) rows.emplace_back(one_row(weights, k), prior);
  return rows;
}

/// The recursive form of one IRLS step: the working response of a class is its logit plus (target - p) / (p (1 - p)),
/// and the working weight p (1 - p). Each class by itself, as in the paper.
void learn_softmax(std::vector<RecursiveLeastSquares>& rows, Matrix& weights, std::span<const double> input,
                   std::span<const double> probabilities, std::span<const double> targets, double weight, double keep) {
  // A class that is almost certain tells little of its logit; below this the response would be nothing but rounding.
  constexpr double kLeastCurvature = 1e-3;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const double curvature = std::max(probabilities[k] * (1 - probabilities[k]), kLeastCurvature);
    const double error = (targets[k] - probabilities[k]) / curvature;
    rows[k].update(input, std::span(&error, 1), weight * curvature, keep);
    std::ranges::copy(rows[k].coefficients().row(0), weights.row(k).begin());
  }
}

}  // namespace

OnlineHme::OnlineHme(Hme start, const OnlineOptions& options) : model_(std::move(start)), options_(options) {
  if (!(options.forgetting > 0 && options.forgetting <= 1)) {
    throw ConfigError(fmt::format("a forgetting factor of {}", options.forgetting), "give one above 0, up to 1: 0.99");
  }
  for (const Matrix& gate : model_.gates) gate_rows_.push_back(softmax_rows(gate, options.prior));
  for (const Expert& expert : model_.experts) {
    if (model_.columns.family == Family::kMultinomial) {
      expert_rows_.push_back(softmax_rows(expert.weights, options.prior));
    } else {
      expert_rows_.emplace_back().emplace_back(expert.weights, options.prior);
      floors_.resize(expert.variances.size());
      for (std::size_t k = 0; k < floors_.size(); ++k) {
        floors_[k] = std::max(floors_[k], expert.variances[k] * 1e-6);
      }
    }
  }
  evidence_.assign(model_.experts.size(), 1);  // the starting variances count as one sample
  errors_.resize(model_.columns.outputs());
}

void OnlineHme::learn_gate(std::size_t gate, std::span<const double> input, double keep_all) {
  const double weight = at_.responsibility[gate];
  std::vector<double> probabilities(at_.log_gates[gate].size());
  for (std::size_t j = 0; j < probabilities.size(); ++j) probabilities[j] = std::exp(at_.log_gates[gate][j]);
  learn_softmax(gate_rows_[gate], model_.gates[gate], input, probabilities, at_.posterior[gate], weight,
                std::pow(keep_all, weight));
}

void OnlineHme::learn_expert(std::size_t expert, std::span<const double> input, std::span<const double> target,
                             double keep_all) {
  const double weight = at_.responsibility[model_.gates.size() + expert];
  const double keep = std::pow(keep_all, weight);
  Expert& learned = model_.experts[expert];
  const auto mean = at_.means.row(expert);
  if (model_.columns.family == Family::kMultinomial) {
    learn_softmax(expert_rows_[expert], learned.weights, input, mean, target, weight, keep);
    return;
  }
  for (std::size_t k = 0; k < target.size(); ++k) errors_[k] = target[k] - mean[k];
  expert_rows_[expert][0].update(input, errors_, weight, keep);
  learned.weights = expert_rows_[expert][0].coefficients();
  const double before = evidence_[expert] * keep;
  evidence_[expert] = before + weight;
  for (std::size_t k = 0; k < target.size(); ++k) {
    // With the error after the update: that before it would count what was just learned as noise.
    const double error = target[k] - dot(learned.weights.row(k), input);
    learned.variances[k] =
        std::max((before * learned.variances[k] + weight * error * error) / evidence_[expert], floors_[k]);
  }
}

double OnlineHme::observe(std::span<const double> input, std::span<const double> target) {
  forward(model_, input, at_);
  const double log_likelihood = posteriors(model_, target, at_);
  const double thousands = static_cast<double>(seen_) / 1000;
  const double keep = 1 - (1 - options_.forgetting) * std::pow(options_.annealing, thousands);
  for (std::size_t gate = 0; gate < model_.gates.size(); ++gate) learn_gate(gate, input, keep);
  for (std::size_t expert = 0; expert < model_.experts.size(); ++expert) learn_expert(expert, input, target, keep);
  ++seen_;
  return log_likelihood;
}

Hme fit_online(const Columns& columns, const std::vector<int>& branching, const Samples& samples,
               const EmOptions& start, const OnlineOptions& options) {
  // Starts where EM does, on a part of the data: some scale of the variances must be known.
  const std::size_t first = std::min<std::size_t>(samples.count(), 20 * columns.inputs.size() + 20);
  std::vector<std::size_t> rows(first);
  const Permutation sample(Random(options.seed, "hme/first"), samples.count());
  for (std::size_t i = 0; i < first; ++i) rows[i] = sample.at(i);
  OnlineHme online(random_start(columns, branching, pick(samples, rows), start, 0), options);
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    const Permutation order(Random(options.seed, fmt::format("hme/epoch {}", epoch)), samples.count());
    for (std::size_t i = 0; i < samples.count(); ++i) {
      const std::size_t t = order.at(i);
      online.observe(samples.inputs.row(t), samples.targets.row(t));
    }
  }
  return online.model();
}

}  // namespace trireme::science
