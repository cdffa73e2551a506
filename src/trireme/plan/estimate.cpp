#include "trireme/plan/estimate.h"

#include <fmt/format.h>

#include "trireme/plan/activations.h"

namespace trireme::plan {

double hardware_flops(const Job& job, const ParallelConfig& config) {
  const SequenceFlops count = sequence_flops(job.shape, job.seq_len);
  const auto batch = static_cast<double>(job.batch);
  const double once = model_flops(job) / 3, head = batch * count.head, attention = batch * count.attention;
  const bool selective =
      config.recompute == spec::RecomputeKind::kSelective && job.attention == AttentionKind::kUnfused;
  return 3 * once + recomputed_forwards(job, config) * (once - head - batch * count.mtp) + (selective ? attention : 0);
}

Estimate estimate(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config, Pipeline pipeline) {
  ScheduleCache schedules(job);
  return estimate(hardware, job, config, pipeline, schedules);
}

Estimate estimate(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config, Pipeline pipeline,
                  ScheduleCache& schedules) {
  Estimate result;
  result.config = config;
  result.time = estimate_step(hardware, job, config, pipeline, schedules);
  result.memory = estimate_memory(hardware, job, config, schedules);
  result.model_flops = model_flops(job);
  result.hardware_flops = hardware_flops(job, config);
  result.peak = hardware.peak(job.arithmetic());
  return result;
}

void require_arithmetic(const cost::Hardware& hardware, const Job& job) {
  if (hardware.peak(job.arithmetic()) > 0) return;
  std::vector<std::string> offered;
  for (const auto& entry : cost::enum_names(std::type_identity<cost::Arithmetic>{})) {
    if (hardware.peak(entry.value) > 0) offered.emplace_back(entry.name);
  }
  const auto name = name_in(cost::enum_names(std::type_identity<cost::Arithmetic>{}), job.arithmetic());
  throw ConfigError(fmt::format("device {} has no units for {}", hardware.device.name, name),
                    fmt::format("use --precision {}", offered.empty() ? "fp32" : offered.back()));
}

}  // namespace trireme::plan
