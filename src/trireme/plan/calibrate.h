// plan/calibrate.h -- the constants of a machine from what was measured on it: GEMMs, and whole steps.
//
// Rates and bandwidths are measured one by one; what share of them training reaches, and what every operator costs
// beside, is fitted to GEMMs of several shapes and to steps of small models. Steps that are predicted later are of
// other models and layouts.
// Depends on: estimate.
#pragma once

#include <vector>

#include "trireme/cost/roofline.h"
#include "trireme/plan/estimate.h"

namespace trireme::plan {

struct MeasuredGemm {
  cost::GemmShape gemm;
  cost::Arithmetic arithmetic = cost::Arithmetic::kFp32;
  double seconds = 0;
};

struct MeasuredStep {
  std::string name;
  Job job;
  ParallelConfig config;
  double seconds = 0;
};

struct FittedEfficiency {
  cost::Efficiency efficiency;
  double gemm_error = 0, steps_error = 0;  ///< medians of absolute errors of what it was fitted to
};

/// From the hardware's own constants on; deterministic.
FittedEfficiency calibrate(const cost::Hardware& hardware, const std::vector<MeasuredGemm>& gemms,
                           const std::vector<MeasuredStep>& steps);

/// Seconds for one message of `bytes`, with the fewest relative errors over measured all-reduces of `ranks`:
/// 2 (p-1) alpha + 2 (p-1)/p bytes beta, a ring's.
struct MeasuredReduction {
  double bytes = 0, seconds = 0;
};
struct LinkFit {
  double latency_us = 0, gb_per_s = 0;
};
LinkFit fit_link(const std::vector<MeasuredReduction>& reductions, int ranks);

}  // namespace trireme::plan
