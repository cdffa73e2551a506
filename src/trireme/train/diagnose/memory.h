// train/diagnose/memory.h -- a rank's memory: what is planned for it, what is there for all of a run, and what a micro
// leaves on its tape.
//
// Depends on: device, kernels, nn, optim, parallel, plan, spec.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/device/memory_pool.h"
#include "trireme/nn/tape.h"
#include "trireme/optim/optimizer.h"
#include "trireme/parallel/data_parallel.h"
#include "trireme/plan/memory.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/commands.h"

namespace trireme::train {

/// The device has train.memory_gb; the host has no limit.
device::RankMemory memory_of(const spec::Recipe& recipe);

/// The most bytes that this process has had of a device: of the host's memory, where that is the device.
std::int64_t most_memory(at::Device device);

/// Counts everything but activations as it is now. `kept`: of the optimizer and of the average of weights. A
/// ConfigError when the device has not enough for it.
void count_state(device::RankMemory& memory, const parallel::DataParallel& data_parallel, std::int64_t kept,
                 bool offloaded);

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

// A run's GPU memory before its first step, and whether the run keeps to it.

/// The planner's account (plan/memory.h) of a run: what `check` and `plan` say of it, too.
struct MemoryPlan {
  plan::Job job;
  spec::ParallelConfig config;
  std::vector<plan::RankMemory> stages;  ///< of one rank of each; empty: there is no plan

  double peak() const;  ///< of the fullest rank
  double host() const;  ///< bytes in the host's memory beside it, of the rank that has most there
  /// Of so many ranks on one GPU: all of a run, or as many as full as the fullest.
  double together(int ranks) const;
  /// The lines of the fullest rank.
  std::string table() const;
};

/// What a step of one of so many ranks takes on its GPU. No stages on a CPU.
MemoryPlan plan_memory(const spec::Recipe& recipe, const spec::ModelShape& shape, int ranks, std::int64_t length);

/// The plan of a recipe as if it ran on GPUs, in words.
std::string tell_memory(const MemoryRequest& request);

/// A ConfigError with the plan's table, before anything is allocated, when so many ranks do not fit into the bytes of
/// the GPU that they share.
void require_room(const MemoryPlan& plan, double gpu_bytes, int ranks);

/// Whether steps that look alike still ask the driver for memory. Counts from the fifth step on; after the tenth says
/// so in the log, beside what was planned.
class MemoryWatch {
 public:
  /// `planned` of all ranks on the GPU; 0: there is no plan.
  MemoryWatch(c10::Device device, double planned) : device_(device), planned_(planned) {}
  void step_ended();

 private:
  c10::Device device_;
  double planned_;
  int steps_ = 0;
  std::int64_t allocations_ = 0;
};

}  // namespace trireme::train
