// train/diagnose/memory_plan.h -- a run's GPU memory before its first step, and whether the run keeps to it.
//
// Depends on: device, kernels, plan, spec.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "trireme/plan/step_memory.h"
#include "trireme/spec/recipe.h"
#include "trireme/train/commands.h"

namespace trireme::train {

/// What a step of one of so many ranks takes on its GPU. No lines on a CPU, and where there is no plan.
plan::StepMemory plan_memory(const spec::Recipe& recipe, const spec::ModelShape& shape, int ranks, std::int64_t length);

/// The plan of a recipe as if it ran on GPUs, in words. A ConfigError where there is none.
std::string tell_memory(const MemoryRequest& request);

/// A ConfigError with the plan's table, before anything is allocated, when so many ranks do not fit into the bytes of
/// the GPU that they share.
void require_room(const plan::StepMemory& plan, double gpu_bytes, int ranks);

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
