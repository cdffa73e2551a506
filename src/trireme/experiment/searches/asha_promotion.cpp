// ASHA as published: Li et al., "A System for Massively Parallel Hyperparameter Tuning" (MLSys 2020), algorithm 2.
// Whoever is free promotes the best trial of the highest rung that has one in its top 1/divisor; else a new one begins.
#include <algorithm>
#include <cmath>

#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {
namespace {

class AshaPromotion : public Search {
 public:
  explicit AshaPromotion(const SearchOptions& options)
      : options_(options),
        steps_(asha_rungs(options.max_steps, options.min_steps, options.divisor, options.rungs)),
        rungs_(steps_.size()),
        draws_(static_cast<std::size_t>(options.trials)) {}

  std::optional<Job> next() override {
    if (const auto promoted = promotable()) return *promoted;
    if (!again_.empty()) {
      const int trial = again_.front();
      again_.erase(again_.begin());
      return job_of(trial, 0);
    }
    if (started_ < options_.trials) return job_of(started_++, 0);
    if (running_ == 0) return last_promotion();
    return std::nullopt;
  }

  void tell(const Result& result) override {
    --running_;
    int& draw = draws_[static_cast<std::size_t>(result.trial)];
    const std::size_t rung = rung_of(result.trial);
    if (result.end == Result::End::kInvalid && rung == 0 && ++draw < kMostDraws) {
      again_.push_back(result.trial);
      return;
    }
    rungs_[rung].push_back({.loss = loss_of(result), .trial = result.trial});
    std::ranges::stable_sort(rungs_[rung], {}, &Seen::loss);
  }

  std::vector<std::int64_t> evaluation_steps() const override { return steps_; }

 private:
  struct Seen {
    double loss = 0;
    int trial = 0;
    bool promoted = false;
  };

  /// The rung a trial is being trained for: behind the last one it was seen at.
  std::size_t rung_of(int trial) const {
    std::size_t rung = 0;
    while (rung + 1 < rungs_.size() &&
           std::ranges::any_of(rungs_[rung], [&](const Seen& seen) { return seen.trial == trial; })) {
      ++rung;
    }
    return rung;
  }
  Job job_of(int trial, std::size_t rung) {
    ++running_;
    const int draw = draws_[static_cast<std::size_t>(trial)];
    return {.trial = trial,
            .draw = draw,
            .from = rung == 0 ? 0 : steps_[rung - 1],
            .until = steps_[rung],
            .setting = random_setting(options_.space, options_.seed, trial, draw)};
  }
  Job promote(Seen& seen, std::size_t rung) {
    seen.promoted = true;
    return job_of(seen.trial, rung + 1);
  }
  static bool can_go_on(const Seen& seen) { return !seen.promoted && std::isfinite(seen.loss); }

  std::optional<Job> promotable() {
    for (std::size_t rung = rungs_.size() - 1; rung-- > 0;) {
      std::vector<Seen>& seen = rungs_[rung];
      const std::size_t top = seen.size() / static_cast<std::size_t>(options_.divisor);
      for (std::size_t i = 0; i < top; ++i) {
        if (can_go_on(seen[i])) return promote(seen[i], rung);
      }
    }
    return std::nullopt;
  }
  /// Too few trials for a top 1/divisor at every rung: the best so far is still trained to the end, so that a sweep
  /// ends with a model that is.
  std::optional<Job> last_promotion() {
    if (!rungs_.back().empty()) return std::nullopt;
    for (std::size_t rung = rungs_.size() - 1; rung-- > 0;) {
      for (Seen& seen : rungs_[rung]) {
        if (can_go_on(seen)) return promote(seen, rung);
      }
    }
    return std::nullopt;
  }

  SearchOptions options_;
  std::vector<std::int64_t> steps_;
  std::vector<std::vector<Seen>> rungs_;  // each sorted by loss
  std::vector<int> draws_, again_;
  int started_ = 0, running_ = 0;
};

}  // namespace

std::unique_ptr<Search> make_asha_promotion(const SearchOptions& options) {
  return std::make_unique<AshaPromotion>(options);
}

}  // namespace trireme::experiment
