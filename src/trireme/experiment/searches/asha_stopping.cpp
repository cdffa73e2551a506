// ASHA in its stopping form, as Determined AI ships it: at a rung a trial goes on when it is among the best 1/divisor
// of those seen there so far, itself included, else it is stopped for good. Nothing waits for others.
#include <algorithm>

#include "trireme/experiment/searches/makers.h"
#include "trireme/experiment/searches/stopping_bracket.h"

namespace trireme::experiment {

StoppingBracket::StoppingBracket(const SearchOptions& options, const Size& size)
    : options_(options),
      size_(size),
      steps_(asha_rungs(options.max_steps, options.min_steps, options.divisor, size.rungs)),
      seen_(steps_.size()),
      draws_(static_cast<std::size_t>(size.trials)),
      rungs_(static_cast<std::size_t>(size.trials)) {}

Job StoppingBracket::job_of(int trial) const {
  const auto own = static_cast<std::size_t>(trial - size_.first);
  const std::size_t rung = rungs_[own];
  return {.trial = trial,
          .draw = draws_[own],
          .from = rung == 0 ? 0 : steps_[rung - 1],
          .until = steps_[rung],
          .setting = random_setting(options_.space, options_.seed, trial, draws_[own])};
}

std::optional<Job> StoppingBracket::next() {
  // Trials that go on come before new ones: their process is warm, and a rung above decides more.
  if (!ready_.empty()) {
    const int trial = ready_.front();
    ready_.erase(ready_.begin());
    ++running_;
    return job_of(trial);
  }
  if (started_ == size_.trials || (size_.concurrent > 0 && running_ >= size_.concurrent)) return std::nullopt;
  ++running_;
  return job_of(size_.first + started_++);
}

void StoppingBracket::tell(const Result& result) {
  --running_;
  const auto own = static_cast<std::size_t>(result.trial - size_.first);
  std::size_t& rung = rungs_[own];
  if (result.end == Result::End::kInvalid && rung == 0) {
    if (++draws_[own] < kMostDraws) ready_.push_back(result.trial);
    return;  // removed: it is not counted at the rung
  }
  const double loss = loss_of(result);
  std::vector<double>& losses = seen_[rung];
  // Behind its equals: who came first has the better rank.
  const auto place = losses.insert(std::ranges::upper_bound(losses, loss), loss);
  const bool best =
      goes_on(static_cast<int>(place - losses.begin()), static_cast<int>(losses.size()), options_.divisor);
  if (result.end != Result::End::kReached || rung + 1 == steps_.size() || !best) return;
  ++rung;
  ready_.push_back(result.trial);
}

std::unique_ptr<Search> make_asha_stopping(const SearchOptions& options) {
  return std::make_unique<StoppingBracket>(options,
                                           StoppingBracket::Size{.trials = options.trials, .rungs = options.rungs});
}

}  // namespace trireme::experiment
