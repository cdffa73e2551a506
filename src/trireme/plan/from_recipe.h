// plan/from_recipe.h -- what a recipe asks for, in the planner's terms.
//
// Depends on: job, spec.
#pragma once

#include "trireme/plan/job.h"
#include "trireme/spec/recipe.h"

namespace trireme::plan {

/// The planner knows whole layers or attention alone; every k-th block and segments count as whole layers.
Recompute recompute_of(spec::RecomputeKind kind);
/// The widest that the planner knows of: fp64 counts as fp32.
cost::Arithmetic arithmetic_of(spec::Precision precision);

/// Types and number of what the recipe's optimizer keeps for each parameter.
void take_states(Job& job, const spec::Recipe& recipe);
/// Rows of the run's first step; 0 where the batch is no whole number of them.
std::int64_t batch_rows(const spec::Recipe& recipe);

Job job_of(const spec::Recipe& recipe, const spec::ModelShape& shape);
/// On that many ranks, which one replica of the model divides.
Layout layout_of(const spec::Recipe& recipe, const Job& job, int ranks);

}  // namespace trireme::plan
