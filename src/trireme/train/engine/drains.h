// train/engine/drains.h -- after which steps a pipeline that stays full between steps is emptied: a function of the
// recipe.
//
// Only there do weights belong to one step, so only there they are saved, hashed and evaluated.
// Depends on: spec, train/engine/step_plan.h.
#pragma once

#include <cstdint>

#include "trireme/spec/recipe.h"
#include "trireme/train/engine/step_plan.h"

namespace trireme::train {

/// pipeline.drain_every; where it is not given 1, and of schedules that update while micros are on their way
/// (`asynchronous`) what divides the steps of evaluations, checkpoints and hashes. A ConfigError where one of these
/// would fall between two drains.
std::int64_t drain_every(const spec::Recipe& recipe, bool asynchronous);

/// Steps that run together from `position` on: up to the next drain, the end of the run, or where a step has another
/// number of micros.
std::int64_t steps_until_drain(const spec::Recipe& recipe, std::int64_t every, spec::Position position,
                               const Share& share);

}  // namespace trireme::train
