#include "trireme/plan/goodput.h"

#include <cmath>

namespace trireme::plan {
namespace {

/// Weights in sixteen bits, master weights and two moments in fp32: 13.8 TB for a model of 1.008e12 (2104.04473,
/// section 5.10).
constexpr double kCheckpointBytes = 14;

}  // namespace

double young_interval(double checkpoint_seconds, double mtbf_seconds) {
  return std::sqrt(2 * checkpoint_seconds * mtbf_seconds);
}

double daly_interval(double checkpoint_seconds, double mtbf_seconds) {
  const double ratio = checkpoint_seconds / (2 * mtbf_seconds);
  if (ratio >= 1) return mtbf_seconds;
  return young_interval(checkpoint_seconds, mtbf_seconds) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - checkpoint_seconds;
}

double expected_slowdown(double interval, double checkpoint_seconds, double mtbf_seconds, double restart_seconds) {
  return mtbf_seconds * std::exp(restart_seconds / mtbf_seconds) *
         std::expm1((interval + checkpoint_seconds) / mtbf_seconds) / interval;
}

Goodput estimate_goodput(const cost::Hardware& hardware, const Job& job, int gpus) {
  const cost::Reliability& reliability = hardware.cluster.reliability;
  Goodput goodput;
  goodput.mtbf_seconds = reliability.device_mtbf_hours * 3600 / gpus;
  goodput.checkpoint_bytes = kCheckpointBytes * static_cast<double>(spec::count_parameters(job.shape).total());
  goodput.checkpoint_seconds = goodput.checkpoint_bytes / (reliability.storage_gb_per_s * 1e9 * gpus);
  goodput.interval_seconds = daly_interval(goodput.checkpoint_seconds, goodput.mtbf_seconds);
  goodput.share = 1 / expected_slowdown(goodput.interval_seconds, goodput.checkpoint_seconds, goodput.mtbf_seconds,
                                        reliability.restart_seconds);
  return goodput;
}

}  // namespace trireme::plan
