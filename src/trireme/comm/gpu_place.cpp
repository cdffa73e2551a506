#include "trireme/comm/gpu_place.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::comm {

int choose_gpu(int local_rank, int gpus, std::optional<int> asked) {
  TRIREME_CHECK(gpus > 0 && local_rank >= 0, "local rank {} of a node with {} GPUs", local_rank, gpus);
  if (!asked) return local_rank % gpus;
  if (*asked < gpus) return *asked;
  throw ConfigError(
      fmt::format("TRIREME_GPU is {}, but this process sees {} GPU{}", *asked, gpus, gpus == 1 ? "" : "s"),
      fmt::format("set it to a number from 0 to {}, or unset it", gpus - 1));
}

std::optional<std::string> pretended_host(std::span<const GpuIdentity> gpus, int rank) {
  const GpuIdentity& mine = gpus[static_cast<std::size_t>(rank)];
  if (std::ranges::count(gpus, mine) == 1) return std::nullopt;
  return fmt::format("trireme-rank-{}", rank);
}

}  // namespace trireme::comm
