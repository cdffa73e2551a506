// spmd/descent.h -- gradient descent on a rank's blocks: momentum, weight decay, and the learning rate of each step.
//
//   Descent descent(both, {.learning_rate = 0.1, .momentum = 0.9});
//   descent.load(parameters);                            // bf16 ones get master weights of fp32
//   descent.step(parameters, gradients, step);
//
// The update is element by element, so it is the same for a whole tensor and for its blocks. With warm-up, decays and
// weight decay that leaves norms alone it is the recipe of Goyal et al. (2017, 1706.02677) for large batches.
// Depends on: values.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/spmd/commands.h"
#include "trireme/spmd/values.h"

namespace trireme::spmd {

/// Of step `step`, from 0: a linear warm-up, then divided by ten at each of `decay_at`.
double learning_rate_at(const DescentOptions& options, std::int64_t step);

class Descent {
 public:
  Descent(const pg::Graph& both, const DescentOptions& options);
  /// Momentum starts anew. `start`: in any type; the parameters themselves, or what they were rounded from.
  void load(const Values& parameters, const Values& start);
  /// velocity = momentum * velocity + gradient + weight_decay * parameter; parameter -= rate * velocity.
  void step(Values& parameters, const Values& gradients, std::int64_t step);

 private:
  const DescentOptions options_;
  std::vector<bool> decays_;  // [tensor] not what norms scale and shift by
  Values masters_, velocities_;
};

}  // namespace trireme::spmd
