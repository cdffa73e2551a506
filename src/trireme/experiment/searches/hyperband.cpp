// Hyperband: Li, Jamieson, DeSalvo, Rostamizadeh and Talwalkar (JMLR 2018), algorithm 1. Its brackets are independent
// of each other, so whoever is free while one waits for a rung begins the next. The number of trials follows from the
// steps.
#include <algorithm>
#include <set>

#include "trireme/experiment/searches/halving.h"
#include "trireme/experiment/searches/makers.h"

namespace trireme::experiment {
namespace {

class Hyperband : public Search {
 public:
  explicit Hyperband(const SearchOptions& options) {
    int first = 0;
    for (Bracket& bracket : hyperband_brackets(options.max_steps, options.min_steps, options.divisor)) {
      const int trials = bracket.front().trials;
      brackets_.emplace_back(options, std::move(bracket), first);
      first += trials;
    }
  }

  std::optional<Job> next() override {
    for (Halving& bracket : brackets_) {
      if (auto job = bracket.next()) return job;
    }
    return std::nullopt;
  }
  void tell(const Result& result) override {
    const auto owner = std::ranges::find_if(brackets_, [&](const Halving& bracket) {
      return result.trial >= bracket.first() && result.trial < bracket.first() + bracket.trials();
    });
    owner->tell(result);
  }
  std::vector<std::int64_t> evaluation_steps() const override {
    std::set<std::int64_t> steps;
    for (const Halving& bracket : brackets_) {
      for (const std::int64_t step : bracket.evaluation_steps()) steps.insert(step);
    }
    return {steps.begin(), steps.end()};
  }

 private:
  std::vector<Halving> brackets_;
};

}  // namespace

std::unique_ptr<Search> make_hyperband(const SearchOptions& options) { return std::make_unique<Hyperband>(options); }

}  // namespace trireme::experiment
