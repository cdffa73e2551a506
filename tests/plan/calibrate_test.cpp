#include "trireme/plan/calibrate.h"

#include <gtest/gtest.h>

namespace trireme::plan {
namespace {

Job tiny_job(std::int64_t width, std::int64_t layers, cost::Arithmetic arithmetic) {
  Job job;
  job.shape = spec::family_shape(spec::Family::kLlama);
  job.shape.hidden_size = width, job.shape.num_layers = layers,
  job.shape.num_heads = job.shape.num_kv_heads = width / 64;
  job.shape.head_dim = 64, job.shape.ffn_size = 4 * width, job.shape.vocab_size = 1024;
  job.seq_len = 128;
  job.batch = 8;
  job.precision = precision_of(arithmetic);
  return job;
}

/// A machine measured through its own model gets its constants back, or others that predict the same.
TEST(Calibrate, FindsConstantsThatPredictWhatWasMeasured) {
  cost::Hardware truth = cost::load_hardware("local");
  truth.device.efficiency.matmul = 0.81;
  truth.device.efficiency.memory = 0.37;
  truth.device.efficiency.attention = 0.11;
  truth.device.efficiency.kernel_seconds = 2.3e-5;
  truth.device.efficiency.overlap = 0.2;
  const ParallelConfig two{.layout = {.dp = 2}}, staged{.layout = {.pp = 2}};
  std::vector<MeasuredGemm> gemms;
  std::vector<MeasuredStep> steps, others;
  for (const cost::Arithmetic arithmetic : {cost::Arithmetic::kFp32, cost::Arithmetic::kBf16}) {
    for (const double size : {64.0, 256.0, 1024.0}) {
      const cost::GemmShape gemm{size, 512, size};
      gemms.push_back({gemm, arithmetic, cost::matmul_seconds(truth, arithmetic, gemm)});
    }
    for (const std::int64_t width : {128, 256, 512}) {
      const Job job = tiny_job(width, 2, arithmetic), other = tiny_job(width, 5, arithmetic);
      steps.push_back({"", job, two, estimate(truth, job, two).step_seconds()});
      others.push_back({"", other, staged, estimate(truth, other, staged).step_seconds()});
    }
  }
  cost::Hardware found = cost::load_hardware("local");
  const FittedEfficiency calibration = calibrate(found, gemms, steps);
  EXPECT_LT(calibration.steps_error, 0.02);
  found.device.efficiency = calibration.efficiency;
  for (const MeasuredStep& one : others)
    EXPECT_NEAR(estimate(found, one.job, one.config).step_seconds(), one.seconds, 0.1 * one.seconds);
}

TEST(FitLink, FindsLatencyAndBandwidthOfARing) {
  for (const int ranks : {2, 5, 8}) {
    const double alpha = 3e-6, beta = 1 / 7e9;
    std::vector<MeasuredReduction> measured;
    for (const double bytes : {1e3, 1e5, 1e7})
      measured.push_back({bytes, 2 * (ranks - 1) * (alpha + bytes / ranks * beta)});
    const LinkFit fit = fit_link(measured, ranks);
    EXPECT_NEAR(fit.latency_us, 3, 1e-6);
    EXPECT_NEAR(fit.gb_per_s, 7, 1e-6);
  }
}

}  // namespace
}  // namespace trireme::plan
