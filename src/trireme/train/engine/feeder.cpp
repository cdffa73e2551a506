#include "trireme/train/engine/feeder.h"

#include <algorithm>

namespace trireme::train {

Feeder::Feeder(const spec::Recipe& recipe, const data::Samples& samples, spec::Position from, Share share)
    : recipe_(recipe), share_(share), position_(from) {
  // The prefetch counts only steps in which this rank has rows; with more ranks than rows some have none.
  const auto plan = [this, at = from, last = last_step(recipe)](std::int64_t) mutable {
    while (at.step < last) {
      StepPlan step = plan_step(recipe_, at, share_);
      at = step.after;
      if (!step.microbatches.empty()) return std::move(step.microbatches);
    }
    return std::vector<std::vector<std::int64_t>>{};
  };
  const auto micros = static_cast<int>(plan_step(recipe, from, share).microbatches.size());
  prefetch_ = std::make_unique<data::Prefetch>(
      samples, plan,
      data::Prefetch::Options{.ahead = recipe.data.prefetch > 0 ? std::max(recipe.data.prefetch, 2 * micros) : 0});
}

Fetched Feeder::next() {
  Fetched fetched{.plan = plan_step(recipe_, position_, share_)};
  for (std::size_t micro = 0; micro < fetched.plan.microbatches.size(); ++micro) {
    auto [batch, waited_s] = prefetch_->next();
    fetched.batches.push_back(std::move(batch));
    fetched.waited_s += waited_s;
  }
  position_ = fetched.plan.after;
  return fetched;
}

}  // namespace trireme::train
