// pipeline/delayed_waves.h -- what virtual workers in waves compute, on one rank, minibatch after minibatch: the
// mathematics that HetPipe's runs are held against.
//
// Straight from the definition (schedule/waves.h): every version of the global weights is kept, and every gradient of
// every virtual worker; the weights of a minibatch are a version, less the rate times its own worker's gradients that
// are not in it. Nothing is pushed, pulled, summed up on the way or in flight.
// Depends on: base, schedule, models, nn.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "trireme/models/model.h"
#include "trireme/pipeline/stage.h"
#include "trireme/schedule/waves.h"

namespace trireme::pipeline {

class DelayedWaves {
 public:
  /// The model is borrowed.
  DelayedWaves(models::Model& model, schedule::WaveLaw law) : model_(model), law_(law) {}

  /// The present weights are those that a wave at this rate begins after; to be called before the first minibatch of
  /// each wave, the updates of those before being made.
  void begin_wave(double learning_rate);
  /// Adds the gradients of a minibatch, the `number`-th of this virtual worker, to those of its wave.
  void add(Micro& micro, int worker, int number);

 private:
  using Copy = std::map<const nn::Param*, at::Tensor>;
  models::Model& model_;
  schedule::WaveLaw law_;
  std::vector<Copy> versions_;                    // by wave
  std::vector<double> rates_;                     // by wave
  std::map<int, std::map<int, Copy>> gradients_;  // by virtual worker and minibatch
};

}  // namespace trireme::pipeline
