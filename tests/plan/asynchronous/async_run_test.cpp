// Asynchronous training as discrete events: bounds hold, slow machines cost what they must, a thousand workers take
// seconds.
#include "trireme/plan/asynchronous/async_run.h"

#include <gtest/gtest.h>

#include <cmath>

#include "trireme/base/error.h"

namespace trireme::plan {
namespace {

AsyncResult simulated(AsyncMode mode, AsyncCluster cluster, AsyncOptions options = {}) {
  options.mode = mode;
  options.loss.progress_per_e = 4;
  return simulate_async(cluster, options);
}

TEST(AsyncRun, EveryModeComesToTheTargetWithinItsBounds) {
  for (const auto& mode : enum_names(std::type_identity<AsyncMode>{})) {
    const AsyncResult result = simulated(mode.value, {.workers = 24, .seed = 3}, {.delay = 2});
    EXPECT_TRUE(std::isfinite(result.seconds)) << mode.name;
    EXPECT_NEAR(result.curve.back().loss, 4, 0.1) << mode.name;
    EXPECT_GT(result.throughput, 0) << mode.name;
    EXPECT_GE(result.waiting, 0) << mode.name;
    EXPECT_LE(result.waiting, 1) << mode.name;
    if (result.bound >= 0) {
      EXPECT_LE(result.max_staleness, result.bound) << mode.name;
    }
  }
}

TEST(AsyncRun, ThroughputRisesFromSequentialToEventualOnJitteredWorkers) {
  const AsyncCluster cluster{.workers = 64, .jitter = 0.4, .seed = 5};
  const double sequential = simulated(AsyncMode::kSequential, cluster).throughput;
  const double bounded = simulated(AsyncMode::kBounded, cluster, {.delay = 3}).throughput;
  const double eventual = simulated(AsyncMode::kEventual, cluster).throughput;
  EXPECT_LT(sequential, bounded);
  EXPECT_LE(bounded, eventual * 1.0001);
  // Nobody waits: each worker does one minibatch and one exchange after the other.
  EXPECT_NEAR(eventual, 64 / (std::exp(0.4 * 0.4 / 2) + 0.1), 3);
}

TEST(AsyncRun, HelpersBringASlowWorkerNearTheBalancedStep) {
  const AsyncCluster slow{.workers = 3, .slow_share = 1.0 / 3, .slow_factor = 2, .jitter = 0, .exchange_seconds = 0};
  // Work of 3 minibatches at speeds 1, 1 and 1/2: balanced, a step takes 3 / 2.5.
  const double balanced = 3 / 2.5;
  const auto step = [&](AsyncMode mode) { return 3 / simulated(mode, slow).throughput; };
  EXPECT_NEAR(step(AsyncMode::kSynchronous), 2, 1e-9);
  EXPECT_LE(step(AsyncMode::kFlexRr), 1.15 * balanced);
}

TEST(AsyncRun, PortionsWithBackupTasksMakeASlowWorkerCheap) {
  const AsyncCluster slow{.workers = 8, .slow_share = 1.0 / 8, .slow_factor = 10, .jitter = 0, .exchange_seconds = 0};
  const auto step = [&](AsyncMode mode, int portions) {
    AsyncOptions options{.portions = portions};
    return 8 / simulated(mode, slow, options).throughput;
  };
  EXPECT_NEAR(step(AsyncMode::kSynchronous, 50), 10, 1e-9);
  // 7.1 workers' worth of 8: 8 / 7.1 = 1.13 at best.
  EXPECT_GE(step(AsyncMode::kSandblaster, 50), 8 / 7.1 - 1e-9);
  EXPECT_LE(step(AsyncMode::kSandblaster, 50), 1.3);
  EXPECT_GT(step(AsyncMode::kSandblaster, 1), 1.9) << "whole minibatches: somebody does two";
}

TEST(AsyncRun, WavesHideHiccupsThatABarrierWaitsFor) {
  const AsyncCluster cluster{.workers = 64, .jitter = 0, .hiccup_share = 0.01, .hiccup_factor = 10, .seed = 2};
  const double near = simulated(AsyncMode::kHetPipe, cluster, {.delay = 0}).throughput;
  const double far = simulated(AsyncMode::kHetPipe, cluster, {.delay = 4}).throughput;
  EXPECT_GT(far, 1.1 * near);
}

TEST(AsyncRun, GraphsGetFasterWithKeysUntilNodesAreBusy) {
  const AsyncCluster cluster{.workers = 8, .jitter = 0, .exchange_seconds = 0.08};
  double before = 0;
  for (const int keys : {1, 2, 4, 8}) {
    const AsyncResult result = simulated(AsyncMode::kAmpNet, cluster, {.keys = keys});
    EXPECT_GT(result.throughput, before) << keys;
    EXPECT_LE(result.max_staleness, 2 * keys) << keys;
    before = result.throughput;
  }
}

TEST(AsyncRun, AThousandWorkersTakeSeconds) {
  for (const auto& mode : enum_names(std::type_identity<AsyncMode>{})) {
    AsyncOptions options{.mode = mode.value};
    options.loss.progress_per_e = 2;
    const AsyncResult result = simulate_async({.workers = 1000, .seed = 1}, options);
    EXPECT_TRUE(std::isfinite(result.seconds)) << mode.name;
    EXPECT_GT(result.events, 900U) << mode.name;
  }
}

TEST(AsyncRun, RefusesWhatCannotBe) {
  EXPECT_THROW(simulate_async({.workers = 0}, {}), ConfigError);
  EXPECT_THROW(simulate_async({.workers = 2}, {.mode = AsyncMode::kHetPipe, .stages = 4}), ConfigError);
  EXPECT_THROW(simulate_async({.workers = 2}, {.target_loss = 1}), ConfigError);
}

}  // namespace
}  // namespace trireme::plan
