#include "trireme/train/engine/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme::train {

RowRange stretch_of(std::int64_t first, std::int64_t count, int rank, int ranks) {
  const std::int64_t begin = count * rank / ranks, end = count * (rank + 1) / ranks;
  return {first + begin, end - begin};
}

RowRange stretch_of(std::int64_t first, std::int64_t count, int rank, const std::vector<double>& weights) {
  double total = 0, before = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    total += weights[i];
    if (i < static_cast<std::size_t>(rank)) before += weights[i];
  }
  const auto cut = [&](double weight) {
    return static_cast<std::int64_t>(std::llround(static_cast<double>(count) * weight / total));
  };
  const std::int64_t begin = cut(before), end = cut(before + weights[static_cast<std::size_t>(rank)]);
  return {first + begin, end - begin};
}

StepPlan plan_step(const spec::Recipe& recipe, spec::Position position, const Share& share) {
  StepPlan plan{.before = position};
  plan.hyperparameters = spec::hyperparameters_at(recipe.optim, recipe.lr_schedule, recipe.batch, position);
  plan.after = spec::after(position, plan.hyperparameters);
  if (plan.hyperparameters.batch % share.length != 0 || position.tokens % share.length != 0) {
    const std::int64_t rows = std::max<std::int64_t>(1, plan.hyperparameters.batch / share.length);
    throw ConfigError(
        fmt::format("batch.global_batch_tokens is counted in tokens: step {} takes {}, which is no whole number of "
                    "rows of {} tokens",
                    position.step + 1, plan.hyperparameters.batch, share.length),
        recipe.batch.kind == spec::BatchKind::kConstant
            ? fmt::format("set batch.global_batch_tokens = {} ({} sequences)", rows * share.length, rows)
            : fmt::format("set batch.multiple = {}, and batch.start and batch.global_batch_tokens to multiples of it",
                          share.length));
  }
  plan.samples = plan.hyperparameters.batch / share.length;
  plan.first_sample = (position.tokens + position.skipped) / share.length;
  const RowRange mine = share.weights.empty() ? stretch_of(plan.first_sample, plan.samples, share.rank, share.ranks)
                                              : stretch_of(plan.first_sample, plan.samples, share.rank, share.weights);
  const std::int64_t rows = share.micro_batch_size > 0 ? share.micro_batch_size : mine.count;
  for (std::int64_t done = 0; done < mine.count; done += rows) {
    std::vector<std::int64_t>& micro = plan.microbatches.emplace_back();
    for (std::int64_t i = done; i < std::min(done + rows, mine.count); ++i) micro.push_back(mine.first + i);
  }
  return plan;
}

std::int64_t last_step(const spec::Recipe& recipe) {
  if (recipe.train.steps) return *recipe.train.steps;
  if (recipe.train.tokens) return spec::position_at(recipe.lr_schedule, recipe.batch, *recipe.train.tokens).step;
  throw ConfigError("the recipe does not say how long to train", "set train.steps or train.tokens");
}

}  // namespace trireme::train
