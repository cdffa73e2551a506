// Adaptive ASHA: brackets of ASHA, stopping form, with different numbers of rungs, so that no single choice of how
// early to stop decides a sweep. As Hyperband is to successive halving; trials and concurrency are shared as in
// Determined AI.
#include <algorithm>
#include <numeric>
#include <set>

#include "trireme/experiment/searches/makers.h"
#include "trireme/experiment/searches/stopping_bracket.h"

namespace trireme::experiment {
namespace {

class AdaptiveAsha : public Search {
 public:
  explicit AdaptiveAsha(const SearchOptions& options) {
    // Rungs that the steps do not suffice for would make brackets equal.
    const int most =
        static_cast<int>(asha_rungs(options.max_steps, options.min_steps, options.divisor, options.rungs).size());
    std::vector<int> rungs = bracket_rungs(options.mode, most);
    std::vector<int> trials = bracket_trials(options.trials, options.divisor, rungs);
    while (rungs.size() > 1 && std::accumulate(trials.begin(), trials.end(), 0) > options.trials) {
      rungs.pop_back();  // each bracket has a trial at least
      trials = bracket_trials(options.trials, options.divisor, rungs);
    }
    const std::vector<int> concurrent = bracket_concurrency(options.concurrent, static_cast<int>(rungs.size()));
    int first = 0;
    for (std::size_t i = 0; i < rungs.size(); ++i) {
      brackets_.emplace_back(
          options,
          StoppingBracket::Size{.first = first, .trials = trials[i], .rungs = rungs[i], .concurrent = concurrent[i]});
      first += trials[i];
    }
  }

  /// From the bracket that has fewest running, so that all of them get ahead.
  std::optional<Job> next() override {
    std::vector<StoppingBracket*> order;
    for (StoppingBracket& bracket : brackets_) order.push_back(&bracket);
    std::ranges::stable_sort(order, {}, &StoppingBracket::running);
    for (StoppingBracket* bracket : order) {
      if (auto job = bracket->next()) return job;
    }
    return std::nullopt;
  }
  void tell(const Result& result) override {
    std::ranges::find_if(brackets_, [&](const StoppingBracket& bracket) {
      return bracket.owns(result.trial);
    })->tell(result);
  }
  std::vector<std::int64_t> evaluation_steps() const override {
    return brackets_.front().evaluation_steps();  // the others' are the last of them
  }

 private:
  std::vector<StoppingBracket> brackets_;
};

}  // namespace

std::unique_ptr<Search> make_adaptive_asha(const SearchOptions& options) {
  return std::make_unique<AdaptiveAsha>(options);
}

}  // namespace trireme::experiment
