#include "trireme/science/tasks/task_metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trireme::science {
namespace {

constexpr double kZ95 = 1.959963984540054;

/// A mean of values over items, with the normal interval of its standard error.
TaskMetric mean_metric(std::string name, std::span<const double> values, std::optional<double> chance, bool higher) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double error = values.size() < 2 ? 0 : std::sqrt(squares / (n - 1) / n);
  return {.name = std::move(name),
          .value = mean,
          .chance = chance,
          .low = mean - kZ95 * error,
          .high = mean + kZ95 * error,
          .higher_is_better = higher};
}

TaskMetric share_metric(std::string name, double hits, double n, double chance) {
  const Interval95 interval = wilson_interval(hits, n);
  return {.name = std::move(name),
          .value = hits / n,
          .chance = chance,
          .floor = 1 / n,
          .low = interval.low,
          .high = interval.high};
}

/// The first of `scores` is the largest; ties count as a share of one.
double first_is_best(std::span<const double> scores) {
  const double best = *std::max_element(scores.begin(), scores.end());
  if (scores[0] < best) return 0;
  return 1.0 / static_cast<double>(std::count(scores.begin(), scores.end(), best));
}

/// Sum of (p - y)^2 over the choices, p their likelihoods made to sum to 1.
double brier_score(std::span<const double> log_likelihoods) {
  const double best = *std::max_element(log_likelihoods.begin(), log_likelihoods.end());
  double total = 0;
  for (const double one : log_likelihoods) total += std::exp(one - best);
  double score = 0;
  for (std::size_t i = 0; i < log_likelihoods.size(); ++i) {
    const double p = std::exp(log_likelihoods[i] - best) / total, y = i == 0 ? 1 : 0;
    score += (p - y) * (p - y);
  }
  return score;
}

}  // namespace

Interval95 wilson_interval(double hits, double n) {
  if (n <= 0) return {};
  const double p = hits / n, z2 = kZ95 * kZ95 / n;
  const double middle = (p + z2 / 2) / (1 + z2);
  const double half = kZ95 / (1 + z2) * std::sqrt(p * (1 - p) / n + z2 / (4 * n));
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

std::int64_t edit_distance(std::span<const std::int32_t> one, std::span<const std::int32_t> other) {
  std::vector<std::int64_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::int64_t{0});
  for (std::size_t i = 1; i <= one.size(); ++i) {
    std::int64_t diagonal = row[0];
    row[0] = static_cast<std::int64_t>(i);
    for (std::size_t j = 1; j <= other.size(); ++j) {
      const std::int64_t replaced = diagonal + (one[i - 1] == other[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::vector<TaskMetric> task_metrics(std::span<const TaskOutcome> outcomes, double symbols) {
  std::vector<TaskMetric> metrics;
  if (outcomes.empty()) return metrics;
  const auto n = static_cast<double>(outcomes.size());
  double exact = 0, exact_chance = 0, tokens = 0, right = 0;
  std::vector<double> edits, likelihoods, briers, edit_chances;
  double choice = 0, choice_norm = 0, choice_chance = 0, brier_chance = 0;
  for (const TaskOutcome& one : outcomes) {
    const auto length = static_cast<double>(one.tokens);
    exact += one.exact() ? 1 : 0;
    exact_chance += std::pow(symbols, -length);
    tokens += length;
    right += static_cast<double>(one.right_tokens);
    edits.push_back(static_cast<double>(one.edit_distance));
    edit_chances.push_back(length * (1 - 1 / symbols));
    likelihoods.push_back(one.log_likelihood);
    if (one.choices.size() < 2) continue;
    const auto count = static_cast<double>(one.choices.size());
    choice += first_is_best(one.choices);
    std::vector<double> by_byte(one.choices);
    for (std::size_t i = 0; i < by_byte.size(); ++i)
      by_byte[i] /= static_cast<double>(std::max<std::int64_t>(1, one.choice_bytes[i]));
    choice_norm += first_is_best(by_byte);
    choice_chance += 1 / count;
    briers.push_back(brier_score(one.choices));
    brier_chance += 1 - 1 / count;
  }
  metrics.push_back(share_metric("exact_match", exact, n, exact_chance / n));
  // The interval counts items, not tokens: tokens of one answer are right together.
  TaskMetric accuracy = share_metric("token_accuracy", right, tokens, 1 / symbols);
  const Interval95 of_items = wilson_interval(right / tokens * n, n);
  accuracy.low = of_items.low, accuracy.high = of_items.high;
  metrics.push_back(accuracy);
  metrics.push_back(
      mean_metric("edit_distance", edits, std::accumulate(edit_chances.begin(), edit_chances.end(), 0.0) / n, false));
  metrics.push_back(mean_metric("log_likelihood", likelihoods, -tokens / n * std::log(symbols), true));
  if (!briers.empty()) {
    const auto with = static_cast<double>(briers.size());
    metrics.push_back(share_metric("choice", choice, with, choice_chance / with));
    metrics.push_back(share_metric("choice_norm", choice_norm, with, choice_chance / with));
    metrics.push_back(mean_metric("brier", briers, brier_chance / with, false));
  }
  return metrics;
}

}  // namespace trireme::science
