// comm/nccl/nccl_transport.h -- calls on GPU memory between ranks that are processes: NCCL.
//
// A call goes through these: the hosts arrive and compare it (as for any call), agree on its place in the order of
// launches (launch_order.h), make a communicator if these ranks have none yet, and give the call to NCCL. Communicators
// belong to lists of ranks, not to groups: groups of the same ranks, and messages between the same two, share one.
// Depends on: gpu_transport.h, device/cuda_runtime.h.
#pragma once

#include <memory>
#include <string>

#include "trireme/comm/gpu_transport.h"
#include "trireme/device/cuda_runtime.h"

namespace trireme::comm {

struct NcclOptions {
  int gpu = 0;               ///< of this rank
  std::string library = {};  ///< file of NCCL; empty: libnccl.so.2, as the loader finds it
};

/// NCCL is loaded when a call first needs other ranks. `cuda` is borrowed for good.
std::unique_ptr<GpuTransport> make_nccl_transport(const device::CudaRuntime& cuda, NcclOptions options);

}  // namespace trireme::comm
