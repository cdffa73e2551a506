// train/engine/pipeline_table.h -- the schedule that a recipe's [pipeline] asks for, and between which steps it is
// emptied.
//
// Depends on: base, schedule, plan, spec.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/schedule/replicated.h"
#include "trireme/schedule/schedule.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/engine/step_plan.h"

namespace trireme::train {

/// Whether stages update while micros are on their way.
bool is_asynchronous(const spec::Recipe& recipe);

/// spec::pipeline_micro_rows() of the recipe's schedule.
std::int64_t pipeline_microbatch(const spec::Recipe& recipe);

/// Complete, of so many steps without emptying the pipeline between.
schedule::Schedule pipeline_table(const spec::Recipe& recipe, int micros, int steps);
/// Where stages run on several ranks: 1F1B with a flush, or pipedream's without.
schedule::Schedule replicated_table(const spec::Recipe& recipe, const schedule::StageRanks& stages, int micros,
                                    int steps);

// After which steps a pipeline that stays full between steps is emptied: a function of the recipe, which
// spec::steps_between_drains() gives.
//
// Only there do weights belong to one step, so only there they are saved, hashed and evaluated.

/// Steps that run together from `position` on: up to the next drain, the end of the run, or where a step has another
/// number of micros.
std::int64_t steps_until_drain(const spec::Recipe& recipe, std::int64_t every, spec::Position position,
                               const Share& share);

}  // namespace trireme::train
