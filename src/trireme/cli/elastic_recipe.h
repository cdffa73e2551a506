// cli/elastic_recipe.h -- a recipe on another number of ranks than it was written for.
//
// Depends on: spec, plan.
#pragma once

#include <optional>

#include "trireme/spec/elastic.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {

/// What of a recipe follows the number of ranks, and the recipe with another one. Batch, data and mathematics stay.
spec::ParallelConfig parallel_config_of(const spec::Recipe& recipe);
spec::Recipe with_parallel_config(spec::Recipe recipe, const spec::ParallelConfig& config);

/// The largest world of at most `available` ranks in which the recipe has no problem by any rule.
std::optional<spec::FittedWorld> fit_recipe(const spec::Recipe& recipe, int available);

}  // namespace trireme::cli
