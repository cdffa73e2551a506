#include "trireme/cli/elastic_recipe.h"

#include "trireme/cli/recipe_options.h"
#include "trireme/plan/run_setup.h"
#include "trireme/spec/rules.h"

namespace trireme::cli {

spec::ParallelConfig parallel_config_of(const spec::Recipe& recipe) {
  return {.layout = recipe.layout,
          .pipeline = recipe.pipeline,
          .recompute = recipe.train.recompute,
          .partition_activations = recipe.train.partition_activations};
}

spec::Recipe with_parallel_config(spec::Recipe recipe, const spec::ParallelConfig& config) {
  recipe.layout = config.layout;
  recipe.pipeline = config.pipeline;
  recipe.train.recompute = config.recompute;
  recipe.train.partition_activations = config.partition_activations;
  return recipe;
}

std::optional<spec::FittedWorld> fit_recipe(const spec::Recipe& recipe, int available) {
  return spec::fit_world(parallel_config_of(recipe), available, [&](const spec::ParallelConfig& config, int ranks) {
    spec::Recipe fitted = with_parallel_config(recipe, config);
    fitted.comm.ranks.reset();
    if (!find_all_problems(fitted).empty()) return false;
    const auto shape = spec::shape_of(fitted.model);
    if (!shape) return true;  // a published model's, which only the run opens
    const auto setup = plan::run_setup(
        fitted, *shape, {.ranks = ranks, .rank_kind = spec::RankKind::kProcesses, .seq_len = fitted.data.seq_len});
    return spec::find_refusals(setup, spec::RuleNeeds::kLayout).empty();
  });
}

}  // namespace trireme::cli
