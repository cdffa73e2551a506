// plan/from_recipe.h -- what a recipe asks for, in the planner's terms.
//
// Depends on: job, run_setup, spec, stages.
#pragma once

#include "trireme/plan/job.h"
#include "trireme/spec/recipe.h"

namespace trireme::plan {

/// Rows of the run's first step; 0 where the batch is no whole number of them.
std::int64_t batch_rows(const spec::Recipe& recipe);

Job job_of(const spec::Recipe& recipe, const spec::ModelShape& shape);
/// On that many ranks, which one replica of the model divides. What the recipe leaves open is as the run would choose
/// it.
ParallelConfig config_of(const spec::Recipe& recipe, const Job& job, int ranks);

}  // namespace trireme::plan
