// The median stopping rule: Golovin et al., "Google Vizier" (KDD 2017). A trial is stopped when its best loss so far is
// worse than the median of the others' mean losses up to the same evaluation.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {
namespace {

/// Others that must have been evaluated there: a median of two says little.
constexpr std::size_t kFewestOthers = 3;

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class MedianStopping : public Search {
 public:
  explicit MedianStopping(const SearchOptions& options)
      : options_(options), draws_(static_cast<std::size_t>(options.trials)) {
    for (int round = 1; round <= options.rounds; ++round) {
      const std::int64_t step = options.max_steps * round / options.rounds;
      if (step >= options.min_steps && (steps_.empty() || step > steps_.back())) steps_.push_back(step);
    }
  }

  std::optional<Job> next() override {
    if (!ready_.empty()) {
      const int trial = ready_.front();
      ready_.erase(ready_.begin());
      return job_of(trial);
    }
    if (started_ == options_.trials) return std::nullopt;
    return job_of(started_++);
  }

  void tell(const Result& result) override {
    int& draw = draws_[static_cast<std::size_t>(result.trial)];
    std::vector<double>& losses = losses_[result.trial];
    if (result.end == Result::End::kInvalid && losses.empty()) {
      if (++draw < kMostDraws) ready_.push_back(result.trial);
      return;
    }
    losses.push_back(loss_of(result));
    if (result.end == Result::End::kReached && losses.size() < steps_.size() && !is_worse(result.trial)) {
      ready_.push_back(result.trial);
    }
  }

  std::vector<std::int64_t> evaluation_steps() const override { return steps_; }

 private:
  Job job_of(int trial) {
    const std::size_t round = losses_[trial].size();
    const int draw = draws_[static_cast<std::size_t>(trial)];
    return {.trial = trial,
            .draw = draw,
            .from = round == 0 ? 0 : steps_[round - 1],
            .until = steps_[round],
            .setting = random_setting(options_.space, options_.seed, trial, draw)};
  }

  bool is_worse(int trial) const {
    const std::vector<double>& own = losses_.at(trial);
    const std::size_t rounds = own.size();
    std::vector<double> means;
    for (const auto& [other, losses] : losses_) {
      if (other == trial || losses.size() < rounds) continue;
      double sum = 0;
      for (std::size_t i = 0; i < rounds; ++i) sum += losses[i];
      means.push_back(sum / static_cast<double>(rounds));
    }
    return means.size() >= kFewestOthers && std::ranges::min(own) > median_of(std::move(means));
  }

  SearchOptions options_;
  std::vector<std::int64_t> steps_;
  std::map<int, std::vector<double>> losses_;
  std::vector<int> draws_, ready_;
  int started_ = 0;
};

}  // namespace

std::unique_ptr<Search> make_median_stopping(const SearchOptions& options) {
  return std::make_unique<MedianStopping>(options);
}

}  // namespace trireme::experiment
