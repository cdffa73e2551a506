// science/tasks/tasks/task_metrics.h -- what a model answered, as metrics with what guessing would give and how sure
// they are.
//
// Exact match and multiple choice are all or nothing, the others are not: over a family of models the former jump where
// the latter rise (Schaeffer et al. 2023). A share of n items cannot be told from 0 below 1/n, its resolution floor.
// Depends on: std.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::science {

/// Of one item.
struct TaskOutcome {
  std::int64_t tokens = 0;                      ///< of the answer
  std::int64_t right_tokens = 0;                ///< the likeliest token behind the right ones before it
  std::int64_t edit_distance = 0;               ///< between the answer and as many tokens that the model wrote greedily
  double log_likelihood = 0;                    ///< of the answer, nats
  std::vector<double> choices = {};             ///< log-likelihoods: the answer, then the distractors
  std::vector<std::int64_t> choice_bytes = {};  ///< their lengths
  bool exact() const { return right_tokens == tokens; }
};

struct TaskMetric {
  std::string name;
  double value = 0;
  std::optional<double> chance = {};  ///< what guessing gives
  std::optional<double> floor = {};   ///< of shares: 1 / n, below which nothing can be told from 0
  double low = 0, high = 0;           ///< 95 %: Wilson's for shares of items, normal for means
  bool higher_is_better = true;
};

struct Interval95 {
  double low = 0, high = 1;
};
/// Wilson's score interval of `hits` among `n`.
Interval95 wilson_interval(double hits, double n);

/// exact_match, token_accuracy, edit_distance and log_likelihood; with distractors choice (the likeliest is the
/// answer), choice_norm (by likelihood a byte) and brier. `symbols`: how many a token could be, for chance levels.
std::vector<TaskMetric> task_metrics(std::span<const TaskOutcome> outcomes, double symbols);

/// Levenshtein's distance of two lists of tokens.
std::int64_t edit_distance(std::span<const std::int32_t> one, std::span<const std::int32_t> other);

}  // namespace trireme::science
