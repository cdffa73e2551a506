#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/science/hme_fit.h"

namespace trireme::science {
namespace {

/// What the E-step leaves: for all samples, the weights and targets of every regression of the M-step.
struct Expectations {
  std::vector<std::vector<double>> gate_weights;    // [gate][sample]
  std::vector<Matrix> gate_targets;                 // [gate]: sample x branch
  std::vector<std::vector<double>> expert_weights;  // [expert][sample]
  double log_likelihood = 0;                        // mean a sample

  Expectations(const Hme& model, std::size_t count)
      : gate_weights(model.gates.size(), std::vector<double>(count)),
        expert_weights(model.experts.size(), std::vector<double>(count)) {
    for (const Matrix& gate : model.gates) gate_targets.emplace_back(count, gate.rows);
  }
};

/// With `given_targets` not set the gates alone decide who is responsible: the start, before experts are fitted.
void expect(const Hme& model, const Samples& samples, bool given_targets, Expectations& out) {
  Forward at;
  double sum = 0;
  const std::size_t gates = model.gates.size();
  for (std::size_t t = 0; t < samples.count(); ++t) {
    forward(model, samples.inputs.row(t), at);
    if (!given_targets) {
      for (std::size_t e = 0; e < model.experts.size(); ++e) out.expert_weights[e][t] = std::exp(at.log_path[e]);
      continue;
    }
    sum += posteriors(model, samples.targets.row(t), at);
    for (std::size_t gate = 0; gate < gates; ++gate) {
      out.gate_weights[gate][t] = at.responsibility[gate];
      std::ranges::copy(at.posterior[gate], out.gate_targets[gate].row(t).begin());
    }
    for (std::size_t e = 0; e < model.experts.size(); ++e) out.expert_weights[e][t] = at.responsibility[gates + e];
  }
  out.log_likelihood = sum / static_cast<double>(samples.count());
}

std::vector<double> target_variances(const Samples& samples) {
  std::vector<double> variances(samples.targets.columns);
  const double count = static_cast<double>(samples.count());
  for (std::size_t k = 0; k < variances.size(); ++k) {
    double mean = 0;
    for (std::size_t t = 0; t < samples.count(); ++t) mean += samples.targets(t, k) / count;
    for (std::size_t t = 0; t < samples.count(); ++t) variances[k] += std::pow(samples.targets(t, k) - mean, 2) / count;
  }
  return variances;
}

class MStep {
 public:
  MStep(const Samples& samples, const EmOptions& options) : samples_(samples), options_(options) {
    if (options.variance_floor <= 0) throw ConfigError("a variance floor of 0 or less", "give one such as 1e-6");
    for (const double variance : target_variances(samples)) {
      // A target that never changes still needs a density.
      floors_.push_back(std::max(variance, 1e-300) * options.variance_floor);
    }
  }

  void experts(Hme& model, const Expectations& expected) {
    for (std::size_t e = 0; e < model.experts.size(); ++e) expert(model, model.experts[e], expected.expert_weights[e]);
  }
  void gates(Hme& model, const Expectations& expected) {
    const IrlsOptions irls{.iterations = options_.irls_steps};
    for (std::size_t gate = 0; gate < model.gates.size(); ++gate) {
      fit_softmax(samples_.inputs, expected.gate_weights[gate], expected.gate_targets[gate], model.gates[gate], irls,
                  ridge);
    }
  }
  int count_floored(const Hme& model) const {
    int count = 0;
    for (const Expert& expert : model.experts) {
      for (std::size_t k = 0; k < expert.variances.size(); ++k) count += expert.variances[k] <= floors_[k] ? 1 : 0;
    }
    return count;
  }

  RidgeUse ridge;

 private:
  void expert(const Hme& model, Expert& expert, std::span<const double> weights) {
    constexpr double kNobody = 1e-9;  // samples: an expert that none belongs to stays as it is
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    if (total < kNobody) return;
    if (model.columns.family == Family::kMultinomial) {
      fit_softmax(samples_.inputs, weights, samples_.targets, expert.weights, {.iterations = options_.irls_steps},
                  ridge);
      return;
    }
    fit_least_squares(samples_.inputs, weights, samples_.targets, expert.weights, ridge);
    std::vector<double> squares(expert.variances.size());
    for (std::size_t t = 0; t < samples_.count(); ++t) {
      if (weights[t] <= 0) continue;
      for (std::size_t k = 0; k < squares.size(); ++k) {
        squares[k] +=
            weights[t] * std::pow(samples_.targets(t, k) - dot(expert.weights.row(k), samples_.inputs.row(t)), 2);
      }
    }
    for (std::size_t k = 0; k < squares.size(); ++k) expert.variances[k] = std::max(squares[k] / total, floors_[k]);
  }

  const Samples& samples_;
  const EmOptions& options_;
  std::vector<double> floors_;
};

}  // namespace

Hme random_start(const Columns& columns, const std::vector<int>& branching, const Samples& samples,
                 const EmOptions& options, int restart) {
  constexpr double kSharpness = 2;  // of the cuts, in standard deviations of an input
  if (samples.count() == 0) throw ConfigError("there are no samples to fit to", "leave some out of --held-out");
  Hme model = Hme::make(columns, branching);
  const Random random(options.seed, fmt::format("hme/start {}", restart));
  std::uint64_t draw = 0;
  const std::size_t inputs = model.inputs() - 1;
  for (Matrix& gate : model.gates) {
    for (std::size_t j = 0; j + 1 < gate.rows; ++j) {
      // A plane of random direction through a random sample: it cuts where there is something to cut.
      const auto sample = samples.inputs.row(random.below(samples.count(), draw));
      double length = 0;
      for (std::size_t i = 0; i < inputs; ++i) {
        gate(j, i) = random.normal(draw * inputs + i);
        length += gate(j, i) * gate(j, i);
      }
      for (std::size_t i = 0; i < inputs; ++i) gate(j, i) *= kSharpness / std::sqrt(std::max(length, 1e-12));
      gate(j, inputs) = -dot(gate.row(j).first(inputs), sample.first(inputs));
      ++draw;
    }
  }
  Expectations expected(model, samples.count());
  expect(model, samples, false, expected);
  MStep(samples, options).experts(model, expected);
  return model;
}

EmReport run_em(Hme& model, const Samples& samples, const EmOptions& options) {
  EmReport report;
  MStep step(samples, options);
  Expectations expected(model, samples.count());
  for (int iteration = 0;; ++iteration) {
    expect(model, samples, true, expected);
    report.log_likelihoods.push_back(expected.log_likelihood);
    const std::size_t seen = report.log_likelihoods.size();
    if (seen > 1 && report.log_likelihoods[seen - 1] - report.log_likelihoods[seen - 2] < options.tolerance) {
      report.converged = true;
      break;
    }
    if (iteration == options.iterations) break;
    step.experts(model, expected);
    step.gates(model, expected);
  }
  report.ridge = step.ridge;
  report.floored_variances = step.count_floored(model);
  return report;
}

Hme fit_by_em(const Columns& columns, const std::vector<int>& branching, const Samples& samples,
              const EmOptions& options, EmReport* report) {
  Hme best;
  EmReport of_best;
  const int restarts = branching.empty() ? 1 : std::max(options.restarts, 1);  // one expert has one optimum
  for (int restart = 0; restart < restarts; ++restart) {
    Hme model = random_start(columns, branching, samples, options, restart);
    EmReport run = run_em(model, samples, options);
    run.restart = restart;
    if (restart == 0 || run.log_likelihoods.back() > of_best.log_likelihoods.back()) {
      best = std::move(model);
      of_best = std::move(run);
    }
  }
  if (report != nullptr) *report = std::move(of_best);
  return best;
}

}  // namespace trireme::science
