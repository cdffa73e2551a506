#include "trireme/experiment/rungs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::experiment {

Bracket halving_bracket(int trials, std::int64_t max_steps, int divisor, int rungs) {
  TRIREME_CHECK(trials >= 1 && max_steps >= 1 && divisor >= 2 && rungs >= 1,
                "halving of {} trials over {} steps by {} in {} rungs", trials, max_steps, divisor, rungs);
  int halvings = 0;
  std::int64_t steps = max_steps;
  for (int left = trials; halvings + 1 < rungs && left / divisor >= 1 && steps / divisor >= 1; ++halvings) {
    left /= divisor;
    steps /= divisor;
  }
  Bracket bracket;
  std::int64_t share = 1;
  for (int i = 0; i < halvings; ++i) share *= divisor;
  for (int left = trials; share >= 1; left /= divisor, share /= divisor) {
    bracket.push_back({.trials = left, .steps = max_steps / share});
  }
  return bracket;
}

std::vector<Bracket> hyperband_brackets(std::int64_t max_steps, std::int64_t min_steps, int divisor) {
  TRIREME_CHECK(max_steps >= min_steps && min_steps >= 1 && divisor >= 2, "Hyperband from {} to {} steps by {}",
                min_steps, max_steps, divisor);
  int most = 0;  // s_max = floor(log_divisor(max_steps / min_steps))
  std::int64_t power = 1;
  while (power <= max_steps / min_steps / divisor) {
    power *= divisor;
    ++most;
  }
  std::vector<Bracket> brackets;
  for (int s = most; s >= 0; --s, power /= divisor) {
    // n = ceil((s_max + 1) / (s + 1) * divisor^s)
    const std::int64_t first = ((most + 1) * power + s) / (s + 1);
    Bracket bracket;
    std::int64_t trials = first;
    for (std::int64_t share = power; share >= 1; share /= divisor, trials /= divisor) {
      bracket.push_back({.trials = static_cast<int>(trials), .steps = max_steps / share});
    }
    brackets.push_back(std::move(bracket));
  }
  return brackets;
}

std::vector<std::int64_t> asha_rungs(std::int64_t max_steps, std::int64_t min_steps, int divisor, int rungs) {
  TRIREME_CHECK(max_steps >= 1 && min_steps >= 1 && divisor >= 2 && rungs >= 1, "{} rungs of {} to {} steps by {}",
                rungs, min_steps, max_steps, divisor);
  std::vector<std::int64_t> steps;
  for (std::int64_t at = max_steps; static_cast<int>(steps.size()) < rungs && (steps.empty() || at >= min_steps);
       at /= divisor) {
    if (at < 1) break;
    steps.push_back(at);
  }
  std::ranges::reverse(steps);
  return steps;
}

bool goes_on(int rank, int count, int divisor) { return rank < std::max(count / divisor, 1); }

std::vector<int> bracket_rungs(Mode mode, int rungs) {
  const int fewest = mode == Mode::kAggressive ? rungs : mode == Mode::kStandard ? (rungs - 1) / 2 + 1 : 1;
  std::vector<int> brackets;
  for (int count = rungs; count >= fewest; --count) brackets.push_back(count);
  return brackets;
}

std::vector<int> bracket_trials(int trials, int divisor, const std::vector<int>& rungs) {
  std::vector<double> weights;
  for (const int count : rungs) weights.push_back(std::pow(divisor, count - 1) / count);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int> out;
  for (const double weight : weights) out.push_back(std::max(static_cast<int>(weight / sum * trials), 1));
  out.front() += std::max(0, trials - std::accumulate(out.begin(), out.end(), 0));
  return out;
}

std::vector<int> bracket_concurrency(int concurrent, int brackets) {
  const int all = std::max(concurrent, brackets);
  std::vector<int> out(static_cast<std::size_t>(brackets), all / brackets);
  for (int i = 0; i < all % brackets; ++i) ++out[static_cast<std::size_t>(i)];
  return out;
}

}  // namespace trireme::experiment
