// train/engine/pipeline_table.h -- the schedule that a recipe's [pipeline] asks for, and between which steps it is
// emptied.
//
// Depends on: base, schedule, spec.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/schedule/schedule.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/engine/step_plan.h"

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

// After which steps a pipeline that stays full between steps is emptied: a function of the recipe.
//
// Only there do weights belong to one step, so only there they are saved, hashed and evaluated.

/// pipeline.drain_every; where it is not given 1, and of schedules that update while micros are on their way
/// (`asynchronous`) what divides the steps of evaluations, checkpoints and hashes. A ConfigError where one of these
/// would fall between two drains.
std::int64_t drain_every(const spec::Recipe& recipe, bool asynchronous);

/// Steps that run together from `position` on: up to the next drain, the end of the run, or where a step has another
/// number of micros.
std::int64_t steps_until_drain(const spec::Recipe& recipe, std::int64_t every, spec::Position position,
                               const Share& share);

}  // namespace trireme::train
