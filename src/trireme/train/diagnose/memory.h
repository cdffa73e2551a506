// train/diagnose/memory.h -- a rank's account of its memory: what is there for all of a run, and what a micro leaves on
// its tape.
//
// Depends on: device, kernels, nn, optim, parallel, spec.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/device/memory_pool.h"
#include "trireme/nn/tape.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

/// The device has train.memory_gb; the host has no limit.
device::RankMemory memory_of(const spec::Recipe& recipe);

/// The most bytes that this process has had of a device: of the host's memory, where that is the device.
std::int64_t most_memory(at::Device device);

/// Counts everything but activations as it is now. A ConfigError when the device has not enough for it.
void count_state(device::RankMemory& memory, const parallel::DataParallel& data_parallel,
                 const optim::Optimizer& optimizer, bool offloaded);

/// The frames of a tape after its forward pass, as long as this lives: until its backward pass is over.
class CountedTape {
 public:
  /// `memory` is borrowed; null: nothing is counted.
  CountedTape(device::RankMemory* memory, const nn::Tape& tape);
  ~CountedTape();
  CountedTape(const CountedTape&) = delete;
  CountedTape& operator=(const CountedTape&) = delete;

 private:
  device::RankMemory* memory_;
  std::int64_t bytes_ = 0;
};

}  // namespace trireme::train
