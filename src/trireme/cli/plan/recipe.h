// cli/plan/recipe.h -- between recipes and plans: what a recipe says of its layout, and the recipe of a plan.
//
// Depends on: spec, plan, cli/plan/options.
#pragma once

#include <string>

#include "trireme/cli/plan/options.h"
#include "trireme/plan/estimate.h"
#include "trireme/spec/recipe.h"

namespace trireme::cli {

/// Fills in what the recipe says and no flag has said. Length and batch come from [data] and [batch], precision
/// and optimizer of the job from their own.
void take_from_recipe(const spec::Recipe& recipe, plan::Choices& given, std::optional<std::int64_t>& length,
                      std::optional<std::int64_t>& batch, plan::Job& job);

/// A recipe that `trireme train` reads: the task's own one with the plan's layout. Data that is not given is a
/// required key that is named; `tokens` is how long, 100 steps where it is empty.
std::string recipe_text(const PlanTask& task, const plan::Estimate& estimate, const std::string& tokens);

}  // namespace trireme::cli
