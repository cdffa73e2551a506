#include "trireme/plan/estimate.h"

#include <fmt/format.h>

namespace trireme::plan {

double hardware_flops(const Job& job, Recompute recompute) {
  const MixtureFlops count = count_flops(job.shape, job.mixture, job.length);
  const auto batch = static_cast<double>(job.batch);
  const double once = model_flops(job) / 3, head = batch * count.head, attention = batch * count.attention;
  switch (recompute) {
    case Recompute::kNone:
      return 3 * once;
    case Recompute::kSelective:
      return 3 * once + (job.attention == AttentionKind::kUnfused ? attention : 0);
    case Recompute::kFull:
      return 3 * once + once - head;
  }
  return 0;
}

Estimate estimate(const cost::Hardware& hardware, const Job& job, const Layout& layout, Pipeline pipeline) {
  Estimate result;
  result.layout = layout;
  result.time = estimate_step(hardware, job, layout, pipeline);
  result.memory = estimate_memory(hardware, job, layout);
  result.model_flops = model_flops(job);
  result.hardware_flops = hardware_flops(job, layout.recompute);
  result.peak = hardware.peak(job.arithmetic);
  return result;
}

void require_arithmetic(const cost::Hardware& hardware, const Job& job) {
  if (hardware.peak(job.arithmetic) > 0) return;
  std::vector<std::string> offered;
  for (const auto& entry : cost::enum_names(std::type_identity<cost::Arithmetic>{})) {
    if (hardware.peak(entry.value) > 0) offered.emplace_back(entry.name);
  }
  const auto name = name_in(cost::enum_names(std::type_identity<cost::Arithmetic>{}), job.arithmetic);
  throw ConfigError(fmt::format("device {} has no units for {}", hardware.device.name, name),
                    fmt::format("use --precision {}", offered.empty() ? "fp32" : offered.back()));
}

}  // namespace trireme::plan
