// parallel/gpu_exchange.h -- lets ranks pass each other memory of their GPUs: threads, which share one, and processes,
// which have NCCL.
//
// Depends on: comm, device, kernels, spec.
#pragma once

#include <c10/core/Device.h>

#include "trireme/spec/recipe.h"

namespace trireme::comm {
class Group;
}

namespace trireme::parallel {

/// What this rank computes with, ready for use by the calling thread: ranks that are threads share the first GPU,
/// processes take those of their node in turn. A ConfigError where there is no GPU.
c10::Device device_of(spec::DeviceKind kind, comm::Group& world);
/// The same, called by all ranks of the group before they exchange anything between their GPUs.
c10::Device init_device_exchange(spec::DeviceKind kind, comm::Group& world);

/// Gives the comm room the kernels it needs (comm/gpu_memory.h); again: nothing changes. Every rank must leave its
/// tensors on the GPU's default stream. A ConfigError where libtrireme_cuda is missing or does not run on the GPU.
void use_gpu_exchange();

/// The GPU of this rank, which is a process, of so many that it sees: TRIREME_GPU, else its number on the node modulo
/// their number.
int gpu_of_process(const comm::Group& world, int gpus);

/// Gives a rank that is a process NCCL for calls on memory of this GPU, in all its groups; again: nothing changes. As
/// above, each rank's tensors are on the stream that is its thread's when it calls. A ConfigError as above.
void use_nccl(comm::Group& world, int gpu);

/// Ranks that share a GPU (for tests: NCCL is slow then) tell NCCL that they are on different hosts, unless NCCL_HOSTID
/// is set. All ranks of the group call this before any of them makes a call on its GPU.
void tell_nccl_of_shared_gpus(comm::Group& world, int gpu);

/// How many ranks of the group, which are processes, compute on this one's GPU. All of them call this.
int ranks_that_share(comm::Group& world, int gpu);

}  // namespace trireme::parallel
