// train/servers/sandblaster_driver.h -- train.mode = "sandblaster": iterations of L-BFGS on parameter shards as steps.
//
// Depends on: train/engine.
#pragma once

#include <memory>

#include "trireme/train/engine/step_driver.h"

namespace trireme::train {

std::unique_ptr<StepDriver> make_sandblaster_driver(TrainState& state, SingleStepEngine& engine);

}  // namespace trireme::train
