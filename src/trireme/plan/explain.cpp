#include "trireme/plan/explain.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace trireme::plan {

std::string why_slower(const Estimate& best, const Estimate& other) {
  const auto parts = [](const Estimate& one) {
    const StepTime& time = one.time;
    return std::array<std::pair<const char*, double>, 9>{
        {{"GEMMs", time.work.matmul},
         {"attention", time.work.attention},
         {"memory-bound operators", time.work.streaming},
         {one.config.layout.ep > 1 ? "tensor, context and expert parallelism" : "tensor and context parallelism",
          time.work.communication},
         {"messages between stages", time.pipeline},
         {"the pipeline's bubble", time.bubble},
         {"replicas", time.replicas},
         {"the host", time.offload},
         {"the optimizer", time.optimizer}}};
  };
  const auto mine = parts(best), theirs = parts(other);
  std::size_t most = 0;
  for (std::size_t index = 0; index < mine.size(); ++index) {
    if (theirs[index].second - mine[index].second > theirs[most].second - mine[most].second) most = index;
  }
  return fmt::format("{:.1f} % slower, most of it in {}", 100 * (other.step_seconds() / best.step_seconds() - 1),
                     theirs[most].first);
}

std::string why_not(const Memory& memory) {
  constexpr double kGib = 1073741824.0;
  if (memory.peak() <= kUsable * memory.device)
    return fmt::format("needs {:.1f} GiB of the host, which has {:.1f}", memory.host / kGib, memory.host_device / kGib);
  return fmt::format("needs {:.1f} GiB of {:.1f}, most of it {}", memory.peak() / kGib, memory.device / kGib,
                     memory.parts.largest().first);
}

}  // namespace trireme::plan
