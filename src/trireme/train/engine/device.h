// train/engine/device.h -- what a rank computes with, and what fills its memory.
//
// Depends on: comm, device, spec.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "trireme/comm/group.h"
#include "trireme/device/memory_pool.h"
#include "trireme/spec/recipe.h"

namespace trireme::train {

/// The device of run.device, as parallel::device_of() gives it.
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
