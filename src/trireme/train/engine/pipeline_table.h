// train/engine/pipeline_table.h -- the schedule that a recipe's [pipeline] asks for.
//
// Depends on: base, schedule, spec.
#pragma once

#include <vector>

#include "trireme/schedule/schedule.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

/// Whether ranks update while micros are on their way. ConfigError where there is no such schedule.
bool is_asynchronous(const spec::Recipe& recipe);

/// Rows of a micro: train.micro_batch_size, or where it is not given one; of schedules that update after every micro
/// all that a pipeline has of a step (0).
std::int64_t pipeline_microbatch(const spec::Recipe& recipe);

/// Complete, of so many steps without emptying the pipeline between. ConfigError where the schedule is not defined for
/// the recipe's stages and these micros.
schedule::Schedule pipeline_table(const spec::Recipe& recipe, int micros, int steps);
/// 1F1B where stages run on so many ranks each.
schedule::Schedule replicated_table(const std::vector<int>& ranks_of_stage, int micros, int steps);

}  // namespace trireme::train
