// train/engine/device.h -- what a rank computes with, and what a recipe cannot ask of a GPU yet.
//
// Depends on: comm, device, spec.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <vector>

#include "trireme/base/config.h"
#include "trireme/comm/group.h"
#include "trireme/device/memory_pool.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

/// Everything that run.device = "cuda" does not go with; empty for the CPU.
std::vector<config::Problem> find_device_problems(const spec::Recipe& recipe, const comm::Group& world);

/// The device of run.device, as parallel::device_of() gives it; a ProblemsError with the above.
c10::Device device_of(const spec::Recipe& recipe, comm::Group& world);
/// The same, called by all ranks of the group before they exchange anything between their GPUs.
c10::Device init_device_exchange(const spec::Recipe& recipe, comm::Group& world);

[[noreturn]] void raise_gpu_full(const c10::OutOfMemoryError& error, const spec::ModelShape& shape,
                                 spec::Precision precision, const device::RankMemory& memory);
/// Body's answer; a ConfigError with what is where and what to change when the GPU's memory is full.
template <typename Body>
auto telling_what_fills_the_gpu(const spec::Recipe& recipe, const spec::ModelShape& shape,
                                const device::RankMemory& memory, const Body& body) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    raise_gpu_full(error, shape, recipe.precision.compute, memory);
  }
}

}  // namespace trireme::train
