// plan/estimate.h -- time, memory and rates of one layout.
//
// Depends on: job, memory, step_time.
#pragma once

#include "trireme/plan/job.h"
#include "trireme/plan/memory.h"
#include "trireme/plan/step_time.h"

namespace trireme::plan {

struct Estimate {
  ParallelConfig config;
  StepTime time;
  Memory memory;
  double model_flops = 0;     ///< of a step, as papers report them
  double hardware_flops = 0;  ///< with what is recomputed
  double peak = 0;            ///< FLOP/s of a device by its data sheet

  double step_seconds() const { return time.total(); }
  double tflops_per_gpu() const { return model_flops / step_seconds() / config.ranks() / 1e12; }
  double hardware_tflops_per_gpu() const { return hardware_flops / step_seconds() / config.ranks() / 1e12; }
  double mfu() const { return tflops_per_gpu() * 1e12 / peak; }
};

/// FLOPs of a step, those done twice included: 96 B s l h^2 (1 + s/(6h) + V/(16 l h)) for a GPT that recomputes
/// whole layers (Narayanan et al. 2021).
double hardware_flops(const Job& job, const ParallelConfig& config);

/// For a layout without contradictions.
Estimate estimate(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config,
                  Pipeline pipeline = Pipeline::kReplay);
/// The same, of one after the other.
Estimate estimate(const cost::Hardware& hardware, const Job& job, const ParallelConfig& config, Pipeline pipeline,
                  ScheduleCache& schedules);

/// Throws config::ProblemsError when the device has no units for the job's numbers.
void require_arithmetic(const cost::Hardware& hardware, const Job& job);

}  // namespace trireme::plan
