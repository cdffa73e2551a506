// serve/engine_cost.h -- what steps of a model take on this machine, measured: the points of step_cost.h.
//
// Depends on: engine.h, step_cost.h.
#pragma once

#include "trireme/serve/engine.h"
#include "trireme/serve/step_cost.h"

namespace trireme::serve {

struct MeasuredSizes {
  std::int64_t most_rows = 256;      ///< of a prefill chunk
  std::int64_t most_sequences = 64;  ///< that decode in a step
  std::int64_t context = 512;        ///< at which the time of a key is measured
  int rounds = 3;                    ///< of which the median counts
};
/// Takes steps of an engine with these options, whose sizes of steps and cache are set for it.
StepCost measure_step_cost(models::Model& model, EngineOptions options, const MeasuredSizes& sizes);

}  // namespace trireme::serve
