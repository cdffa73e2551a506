// comm/gpu_place.h -- which GPU a rank that is a process takes, and whether it shares it with another rank.
//
// Depends on: base.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

namespace trireme::comm {

/// The same number on its node modulo the node's GPUs, unless `asked` (TRIREME_GPU) says which. ConfigError where there
/// is no such GPU.
int choose_gpu(int local_rank, int gpus, std::optional<int> asked);

/// What tells one GPU from all others in the world: its UUID.
using GpuIdentity = std::array<char, 16>;

/// NCCL takes two ranks on one GPU only when it believes them on different hosts. The name of the host that rank `rank`
/// pretends to be on; nothing where it has its GPU for itself.
std::optional<std::string> pretended_host(std::span<const GpuIdentity> gpus, int rank);

}  // namespace trireme::comm
