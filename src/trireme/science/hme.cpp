#include "trireme/science/hme.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "trireme/base/error.h"
#include "trireme/science/regression.h"

namespace trireme::science {

std::vector<Level> levels_of(const std::vector<int>& branching) {
  std::vector<Level> levels;
  std::size_t first = 0, gates = 1;
  for (const int branches : branching) {
    levels.push_back({.first_gate = first, .gates = gates, .branches = static_cast<std::size_t>(branches)});
    first += gates;
    gates *= static_cast<std::size_t>(branches);
  }
  return levels;
}

Hme Hme::make(Columns columns, std::vector<int> branching) {
  constexpr std::size_t kMostExperts = 4096;
  std::size_t experts = 1;
  for (const int branches : branching) {
    if (branches < 2) throw ConfigError(fmt::format("a gate with {} branches", branches), "give 2 or more");
    experts *= static_cast<std::size_t>(branches);
    if (experts > kMostExperts) {
      throw ConfigError(fmt::format("a tree of more than {} experts", kMostExperts), "take fewer levels or branches");
    }
  }
  Hme model{.columns = std::move(columns), .branching = std::move(branching), .gates = {}, .experts = {}};
  const std::size_t outputs = model.columns.outputs();
  for (const Level& level : levels_of(model.branching)) {
    model.gates.insert(model.gates.end(), level.gates, Matrix(level.branches, model.inputs()));
  }
  const bool gaussian = model.columns.family == Family::kGaussian;
  model.experts.assign(experts, {.weights = Matrix(outputs, model.inputs()),
                                 .variances = std::vector<double>(gaussian ? outputs : 0, 1.0)});
  return model;
}

std::size_t Hme::parameters() const {
  std::size_t count = 0;
  for (const Matrix& gate : gates) count += (gate.rows - 1) * gate.columns;
  for (const Expert& expert : experts) {
    const std::size_t rows = expert.weights.rows - (columns.family == Family::kMultinomial ? 1 : 0);
    count += rows * expert.weights.columns + expert.variances.size();
  }
  return count;
}

void forward(const Hme& model, std::span<const double> input, Forward& out) {
  const std::size_t gates = model.gates.size(), experts = model.experts.size();
  out.log_gates.resize(gates);
  for (std::size_t gate = 0; gate < gates; ++gate) {
    out.log_gates[gate].resize(model.gates[gate].rows);
    log_softmax(model.gates[gate], input, out.log_gates[gate]);
  }
  std::vector<double> path{0.0}, next;
  for (const Level& level : levels_of(model.branching)) {
    next.clear();
    for (std::size_t i = 0; i < level.gates; ++i) {
      for (const double log_gate : out.log_gates[level.first_gate + i]) next.push_back(path[i] + log_gate);
    }
    path.swap(next);
  }
  out.log_path = std::move(path);
  const std::size_t outputs = model.columns.outputs();
  if (out.means.rows != experts || out.means.columns != outputs) out.means = Matrix(experts, outputs);
  for (std::size_t e = 0; e < experts; ++e) {
    const auto row = out.means.row(e);
    if (model.columns.family == Family::kGaussian) {
      for (std::size_t k = 0; k < outputs; ++k) row[k] = dot(model.experts[e].weights.row(k), input);
    } else {
      log_softmax(model.experts[e].weights, input, row);
      for (double& value : row) value = std::exp(value);
    }
  }
}

namespace {

double expert_log_density(const Hme& model, const Expert& expert, std::span<const double> mean,
                          std::span<const double> target) {
  double sum = 0;
  for (std::size_t k = 0; k < target.size(); ++k) {
    if (model.columns.family == Family::kGaussian) {
      const double variance = expert.variances[k], error = target[k] - mean[k];
      sum -= 0.5 * (std::log(2 * std::numbers::pi * variance) + error * error / variance);
    } else if (target[k] > 0) {
      sum += target[k] * std::log(std::max(mean[k], 1e-300));
    }
  }
  return sum;
}

}  // namespace

double posteriors(const Hme& model, std::span<const double> target, Forward& out) {
  const std::size_t gates = model.gates.size(), experts = model.experts.size();
  out.log_density.resize(experts);
  for (std::size_t e = 0; e < experts; ++e) {
    out.log_density[e] = expert_log_density(model, model.experts[e], out.means.row(e), target);
  }
  // Up the tree: the log-likelihood below each node; h_{j|i} is a branch's share of its gate's.
  const std::vector<Level> levels = levels_of(model.branching);
  out.posterior.resize(gates);
  std::vector<double> below = out.log_density, above;
  for (std::size_t at = levels.size(); at-- > 0;) {
    const Level& level = levels[at];
    above.assign(level.gates, 0);
    for (std::size_t i = 0; i < level.gates; ++i) {
      std::vector<double>& shares = out.posterior[level.first_gate + i];
      shares.resize(level.branches);
      double largest = -INFINITY, sum = 0;
      for (std::size_t j = 0; j < level.branches; ++j) {
        shares[j] = out.log_gates[level.first_gate + i][j] + below[i * level.branches + j];
        largest = std::max(largest, shares[j]);
      }
      for (const double share : shares) sum += std::exp(share - largest);
      above[i] = largest + std::log(sum);
      for (double& share : shares) share = std::exp(share - above[i]);
    }
    below.swap(above);
  }
  // Down again: h_i h_{j|i} ...
  out.responsibility.assign(gates + experts, 1.0);
  for (std::size_t at = 0; at < levels.size(); ++at) {
    const Level& level = levels[at];
    const std::size_t first_child = level.first_gate + level.gates;
    for (std::size_t i = 0; i < level.gates; ++i) {
      for (std::size_t j = 0; j < level.branches; ++j) {
        out.responsibility[first_child + i * level.branches + j] =
            out.responsibility[level.first_gate + i] * out.posterior[level.first_gate + i][j];
      }
    }
  }
  return below[0];
}

std::vector<double> mean_of(const Forward& at) {
  std::vector<double> mean(at.means.columns);
  for (std::size_t e = 0; e < at.means.rows; ++e) {
    const double share = std::exp(at.log_path[e]);
    for (std::size_t k = 0; k < mean.size(); ++k) mean[k] += share * at.means(e, k);
  }
  return mean;
}

Quality quality_of(Family family, const Matrix& targets, const Matrix& predictions, double log_likelihood_sum) {
  const std::size_t count = targets.rows, outputs = targets.columns;
  Quality quality;
  if (count == 0) return quality;
  quality.log_likelihood = log_likelihood_sum / static_cast<double>(count);
  if (family == Family::kMultinomial) {
    std::size_t wrong = 0;
    for (std::size_t t = 0; t < count; ++t) {
      const auto guess = std::ranges::max_element(predictions.row(t)) - predictions.row(t).begin();
      wrong += targets(t, static_cast<std::size_t>(guess)) > 0.5 ? 0 : 1;
    }
    quality.error = static_cast<double>(wrong) / static_cast<double>(count);
    return quality;
  }
  for (std::size_t k = 0; k < outputs; ++k) {
    double mean = 0, spread = 0, squares = 0;
    for (std::size_t t = 0; t < count; ++t) mean += targets(t, k) / static_cast<double>(count);
    for (std::size_t t = 0; t < count; ++t) {
      spread += std::pow(targets(t, k) - mean, 2);
      squares += std::pow(targets(t, k) - predictions(t, k), 2);
    }
    quality.error += squares / spread / static_cast<double>(outputs);
  }
  return quality;
}

Quality evaluate(const Hme& model, const Samples& samples) {
  Forward at;
  Matrix predictions(samples.count(), model.columns.outputs());
  double sum = 0;
  for (std::size_t t = 0; t < samples.count(); ++t) {
    forward(model, samples.inputs.row(t), at);
    std::ranges::copy(mean_of(at), predictions.row(t).begin());
    sum += posteriors(model, samples.targets.row(t), at);
  }
  return quality_of(model.columns.family, samples.targets, predictions, sum);
}

}  // namespace trireme::science
