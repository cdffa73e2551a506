// Successive halving: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization"
// (AISTATS 2016).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/experiment/searches/halving.h"
#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {

Halving::Halving(const SearchOptions& options, Bracket bracket, int first)
    : options_(options),
      bracket_(std::move(bracket)),
      first_(first),
      draws_(static_cast<std::size_t>(bracket_.front().trials)),
      waiting_(draws_.size()),
      expected_(draws_.size()) {
  std::iota(waiting_.begin(), waiting_.end(), first);
}

Job Halving::job_of(int trial) const {
  const int draw = draws_[static_cast<std::size_t>(trial - first_)];
  return {.trial = trial,
          .draw = draw,
          .from = rung_ == 0 ? 0 : bracket_[rung_ - 1].steps,
          .until = bracket_[rung_].steps,
          .setting = random_setting(options_.space, options_.seed, trial, draw)};
}

std::optional<Job> Halving::next() {
  if (waiting_.empty()) return std::nullopt;
  const int trial = waiting_.front();
  waiting_.erase(waiting_.begin());
  return job_of(trial);
}

void Halving::tell(const Result& result) {
  int& draw = draws_[static_cast<std::size_t>(result.trial - first_)];
  if (result.end == Result::End::kInvalid && rung_ == 0 && ++draw < kMostDraws) {
    waiting_.push_back(result.trial);
    return;
  }
  results_.push_back(result);
  if (results_.size() == expected_) promote();
}

void Halving::promote() {
  if (rung_ + 1 == bracket_.size()) return;
  // By trial where losses are equal: which result came first must not matter in a synchronous search.
  std::ranges::sort(results_, [](const Result& a, const Result& b) {
    return std::pair(loss_of(a), a.trial) < std::pair(loss_of(b), b.trial);
  });
  ++rung_;
  for (const Result& result : results_) {
    if (static_cast<int>(waiting_.size()) == bracket_[rung_].trials || !std::isfinite(loss_of(result))) break;
    waiting_.push_back(result.trial);
  }
  expected_ = waiting_.size();
  results_.clear();
}

std::vector<std::int64_t> Halving::evaluation_steps() const {
  std::vector<std::int64_t> steps;
  for (const Rung& rung : bracket_) steps.push_back(rung.steps);
  return steps;
}

std::unique_ptr<Search> make_successive_halving(const SearchOptions& options) {
  // Fewer rungs where the first would lie below min_steps.
  const int rungs =
      static_cast<int>(asha_rungs(options.max_steps, options.min_steps, options.divisor, options.rungs).size());
  return std::make_unique<Halving>(options, halving_bracket(options.trials, options.max_steps, options.divisor, rungs));
}

}  // namespace trireme::experiment
