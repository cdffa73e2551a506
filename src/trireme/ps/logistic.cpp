#include "trireme/ps/logistic.h"

#include <cmath>

namespace trireme::ps {
namespace {

double row_margin(const formats::SparseSamples& samples, std::size_t row, std::span<const double> weights) {
  double sum = 0;
  for (std::size_t i = samples.rows[row]; i < samples.rows[row + 1]; ++i)
    sum += samples.values[i] * weights[samples.features[i]];
  return samples.labels[row] * sum;
}

}  // namespace

PortionLoss logistic_portions(const formats::SparseSamples& samples, double lambda, int portions) {
  return [&samples, lambda, portions](int portion, std::span<const double> weights, std::span<double> gradient) {
    const auto all = static_cast<std::size_t>(portions), number = static_cast<std::size_t>(portion);
    const std::size_t first = samples.count() * number / all, last = samples.count() * (number + 1) / all;
    double loss = 0;
    for (std::size_t row = first; row < last; ++row) {
      const double margin = row_margin(samples, row, weights);
      // log(1 + exp(-m)) and its derivative -1 / (1 + exp(m)), without overflow.
      const double small = std::exp(-std::abs(margin));
      loss += std::log1p(small) + (margin < 0 ? -margin : 0);
      const double slope = -(margin > 0 ? small : 1) / (1 + small) * samples.labels[row];
      for (std::size_t i = samples.rows[row]; i < samples.rows[row + 1]; ++i)
        gradient[samples.features[i]] += slope * samples.values[i];
    }
    if (portion > 0) return loss;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      loss += 0.5 * lambda * weights[i] * weights[i];
      gradient[i] += lambda * weights[i];
    }
    return loss;
  };
}

double logistic_accuracy(const formats::SparseSamples& samples, std::span<const double> weights) {
  std::size_t right = 0;
  for (std::size_t row = 0; row < samples.count(); ++row) right += row_margin(samples, row, weights) > 0 ? 1 : 0;
  return samples.count() > 0 ? static_cast<double>(right) / static_cast<double>(samples.count()) : 0;
}

}  // namespace trireme::ps
