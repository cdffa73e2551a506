#include "trireme/train/engine/drains.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::train {
namespace {

// Longer tables gain nothing: filling a pipeline takes a few micros.
constexpr std::int64_t kMostByItself = 128;

std::int64_t largest_divisor(std::int64_t number, std::int64_t most) {
  for (std::int64_t divisor = std::min(number, most); divisor > 1; --divisor) {
    if (number % divisor == 0) return divisor;
  }
  return 1;
}

}  // namespace

std::int64_t drain_every(const spec::Recipe& recipe, bool asynchronous) {
  const std::pair<const char*, std::int64_t> looks[] = {{"eval.every", recipe.eval.every},
                                                        {"checkpoint.every", recipe.checkpoint.every},
                                                        {"train.hash_every", recipe.train.hash_every}};
  std::int64_t common = 0;
  for (const auto& [key, every] : looks) common = std::gcd(common, every);
  if (!recipe.pipeline.drain_every) {
    if (!asynchronous) return 1;
    return common == 0 ? kMostByItself : largest_divisor(common, kMostByItself);
  }
  const std::int64_t drain = *recipe.pipeline.drain_every;
  for (const auto& [key, every] : looks) {
    if (every % drain == 0) continue;
    throw ConfigError(
        fmt::format("{} is {}, but the pipeline is emptied after every {} steps only (pipeline.drain_every), and "
                    "between drains its weights belong to no single step",
                    key, every, drain),
        fmt::format("set {} = {}, or pipeline.drain_every = {}", key, (every / drain + 1) * drain,
                    largest_divisor(common, drain)));
  }
  return drain;
}

std::int64_t steps_until_drain(const spec::Recipe& recipe, std::int64_t every, spec::Position position,
                               const Share& share) {
  const std::int64_t most = std::min(every - position.step % every, last_step(recipe) - position.step);
  StepPlan plan = plan_step(recipe, position, share);
  const std::size_t micros = plan.microbatches.size();
  std::int64_t steps = 1;
  for (; steps < most; ++steps) {
    plan = plan_step(recipe, plan.after, share);
    if (plan.microbatches.size() != micros) break;
  }
  return steps;
}

}  // namespace trireme::train
