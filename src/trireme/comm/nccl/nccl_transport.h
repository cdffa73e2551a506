// comm/nccl/nccl_transport.h -- calls on GPU memory between ranks that are processes: NCCL.
//
// A call goes through these: the hosts arrive and compare it (as for any call), agree on its place in the order of
// launches (launch_order.h), make a communicator if these ranks have none yet, and give the call to NCCL. Communicators
// belong to lists of ranks, not to groups: groups of the same ranks, and messages between the same two, share one.
// Depends on: gpu_transport.h, device/cuda_runtime.h.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
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

// Which GPU a rank that is a process takes, and whether it shares it with another rank.

/// The same number on its node modulo the node's GPUs, unless `asked` (TRIREME_GPU) says which. ConfigError where there
/// is no such GPU.
int choose_gpu(int local_rank, int gpus, std::optional<int> asked);

/// What tells one GPU from all others in the world: its UUID.
using GpuIdentity = std::array<char, 16>;

/// NCCL takes two ranks on one GPU only when it believes them on different hosts. The name of the host that rank `rank`
/// pretends to be on; nothing where it has its GPU for itself.
std::optional<std::string> pretended_host(std::span<const GpuIdentity> gpus, int rank);

}  // namespace trireme::comm
