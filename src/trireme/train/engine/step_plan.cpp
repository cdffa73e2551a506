#include "trireme/train/engine/step_plan.h"

#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/spec/batch_split.h"

namespace trireme::train {

StepPlan plan_step(const spec::Recipe& recipe, spec::Position position, const Share& share) {
  StepPlan plan{.before = position};
  plan.hyperparameters = spec::hyperparameters_at(recipe.optim, recipe.lr_schedule, recipe.batch, position);
  plan.after = spec::after(position, plan.hyperparameters);
  TRIREME_CHECK(plan.hyperparameters.batch % share.length == 0,
                "step {} takes {} tokens, no whole number of rows of {}", position.step + 1, plan.hyperparameters.batch,
                share.length);
  if (position.tokens % share.length != 0) {  // a run that goes on with other rows: no recipe says where it stands
    throw ConfigError(fmt::format("step {} begins after {} tokens, no whole number of rows of {} tokens",
                                  position.step + 1, position.tokens, share.length),
                      "go on with the data.seq_len that the run had");
  }
  plan.samples = plan.hyperparameters.batch / share.length;
  plan.first_sample = (position.tokens + position.skipped) / share.length;
  const spec::RowRange mine =
      spec::share_of_rows(plan.first_sample, plan.samples, share.rank, share.ranks, share.weights);
  const std::int64_t micros =
      share.lockstep ? spec::most_micros(plan.samples, share.ranks, share.weights, share.micro_batch_size) : 0;
  std::int64_t next = mine.first;
  for (const std::int64_t rows : spec::micro_sizes(mine.count, share.micro_batch_size, micros)) {
    std::vector<std::int64_t>& micro = plan.microbatches.emplace_back();
    for (std::int64_t i = 0; i < rows; ++i) micro.push_back(next++);
    if (rows > 0) continue;
    micro.push_back(plan.first_sample);
    ++plan.fillers;
  }
  return plan;
}

std::int64_t last_step(const spec::Recipe& recipe) {
  if (recipe.train.steps) return *recipe.train.steps;
  if (recipe.train.tokens) return spec::position_at(recipe.lr_schedule, recipe.batch, *recipe.train.tokens).step;
  TRIREME_CHECK(false, "the recipe does not say how long to train");
}

}  // namespace trireme::train
