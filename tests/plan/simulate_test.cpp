#include "trireme/plan/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/plan/llama_405b.h"
#include "tests/thread_seconds.h"
#include "trireme/base/error.h"
#include "trireme/plan/published.h"

namespace trireme::plan {
namespace {

Job simulated_gpt() {
  Job job;
  job.shape = shape_of({.num_layers = 32, .hidden_size = 4096, .num_heads = 32, .vocab_size = 51200});
  job.batch = 256;
  return job;
}
const ParallelConfig kLayout{.layout = {.dp = 8, .tp = 2, .pp = 4, .sequence_parallel = true},
                             .pipeline = {.schedule = "interleaved", .virtual_stages = 2}};

SimulatedStep step(const Disturbances& disturbances) {
  return StepSimulator(cost::load_hardware("selene"), simulated_gpt(), kLayout, disturbances).run();
}

TEST(SimulatedStep, WithoutDisturbancesIsTheEstimate) {
  const SimulatedStep plain = step({});
  const double estimated = estimate(cost::load_hardware("selene"), simulated_gpt(), kLayout).step_seconds();
  EXPECT_NEAR(plain.seconds, estimated, 1e-9 * estimated);
  EXPECT_NEAR(plain.undisturbed, estimated, 1e-9 * estimated);
  EXPECT_EQ(plain.pipelines.size(), 8);
}

TEST(SimulatedStep, OneSlowDeviceHoldsUpEverybody) {
  const Disturbances all{.stragglers = 1, .straggler_factor = 2};
  const SimulatedStep slow = step(all), plain = step({});
  EXPECT_EQ(slow.slow_devices, 64);
  // Every pass takes twice as long; only what messages and the tail take stays.
  EXPECT_NEAR(slow.seconds - slow.tail, 2 * (plain.seconds - plain.tail), 0.02 * plain.seconds);
  // Few of them cost almost as much as if whole stages were slow.
  const SimulatedStep few = step({.stragglers = 0.05, .straggler_factor = 2, .seed = 3});
  EXPECT_GT(few.slow_devices, 0);
  EXPECT_LT(few.slow_devices, 12);
  EXPECT_GT(few.seconds, plain.seconds + 0.6 * (slow.seconds - plain.seconds));
}

TEST(SimulatedStep, MoreDisturbanceIsNeverFaster) {
  double before = step({}).seconds;
  for (const double factor : {1.1, 1.5, 3.0}) {
    const double now = step({.stragglers = 0.02, .straggler_factor = factor, .seed = 1}).seconds;
    EXPECT_GE(now, before);
    before = now;
  }
  before = step({}).seconds;
  for (const double factor : {2.0, 8.0, 64.0}) {
    const double now = step({.slow_links = 0.1, .slow_link_factor = factor, .seed = 1}).seconds;
    EXPECT_GE(now, before);
    before = now;
  }
}

/// The whole network at a share of its rate is a cluster with that network: messages and the replicas' sums.
TEST(SimulatedStep, ANetworkThatCarriesLessIsASlowerNetwork) {
  cost::Hardware slower = cost::load_hardware("selene");
  slower.cluster.network.gb_per_s *= 0.25;
  const double expected = StepSimulator(slower, simulated_gpt(), kLayout, {}).run().seconds;
  const SimulatedStep worn = step({.network_share = 0.25}), plain = step({});
  EXPECT_DOUBLE_EQ(worn.seconds, expected);
  EXPECT_DOUBLE_EQ(worn.undisturbed, plain.seconds);
  EXPECT_GT(worn.tail, 1.5 * plain.tail) << "sums over replicas cross nodes";
}

TEST(SimulatedStep, IsAFunctionOfItsSeed) {
  const Disturbances noisy{.stragglers = 0.01, .straggler_factor = 1.3, .jitter = 0.05, .seed = 7};
  EXPECT_EQ(step(noisy).pipelines, step(noisy).pipelines);
  Disturbances other = noisy;
  other.seed = 8;
  EXPECT_NE(step(noisy).pipelines, step(other).pipelines);
}

TEST(SimulatedStep, JitterCostsWhatTheSlowestOfManyCosts) {
  const SimulatedStep plain = step({}), noisy = step({.jitter = 0.1});
  EXPECT_GT(noisy.seconds, plain.seconds);
  EXPECT_LT(noisy.seconds, 1.3 * plain.seconds);
}

TEST(SimulatedStep, TraceHoldsEveryPassOfTheCopies) {
  const StepSimulator simulator(cost::load_hardware("selene"), simulated_gpt(), kLayout, {.jitter = 0.05});
  const SimulatedStep one = simulator.run();
  const auto trace = nlohmann::json::parse(simulator.trace(one, {0, one.slowest}));
  std::size_t passes = 0;
  double last = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    if (event.at("cat") == "forward" || event.at("cat") == "backward") ++passes;
    last = std::max(last, event.at("ts").get<double>() + event.at("dur").get<double>());
  }
  const std::size_t copies = one.slowest == 0 ? 1 : 2;
  EXPECT_EQ(passes, copies * 4 * 2 * 32 * 2);  // stages, chunks, micro-batches, directions
  EXPECT_NEAR(last / 1e6, one.seconds, 1e-4);
}

TEST(SimulatedStep, OfSixteenThousandDevicesTakesSeconds) {
  const Job job = llama_405b();
  const ParallelConfig layout{.layout = {.dp = 128, .tp = 8, .pp = 16, .zero = 2, .sequence_parallel = true},
                              .pipeline = {.schedule = "interleaved", .virtual_stages = 8}};
  const double begin = thread_seconds();
  const SimulatedStep big = StepSimulator(cost::load_hardware("llama3-h100-16k"), job, layout,
                                          {.stragglers = 0.001, .straggler_factor = 1.2, .jitter = 0.02})
                                .run();
  EXPECT_EQ(big.pipelines.size(), 128);
  EXPECT_GT(big.seconds, big.undisturbed);
  EXPECT_LT(thread_seconds() - begin, 30);  // 5 when the machine is quiet
}

RunTask week() {
  RunTask task{.step_seconds = 6, .days = 20000, .restart_seconds = 600};
  task.reliability.mtbf_seconds = 3 * 3600;
  task.reliability.checkpoint_seconds = 60;
  task.reliability.interval_seconds = daly_interval(60, 3 * 3600);
  return task;
}

TEST(SimulatedRun, SharesTimeAsDalyExpects) {
  const RunTask task = week();
  const SimulatedRun run = simulate_run(task);
  const double each = std::round(task.reliability.interval_seconds / 6) * 6;
  const double expected = 1 / expected_slowdown(each, 60, 3 * 3600, 600);
  EXPECT_NEAR(run.goodput(), expected, 0.004);
  EXPECT_NEAR(run.training + run.checkpoints + run.lost + run.restarts, run.seconds, 1e-6 * run.seconds);
  EXPECT_NEAR(static_cast<double>(run.failures), run.seconds / (3 * 3600), 0.02 * run.seconds / (3 * 3600));
}

TEST(SimulatedRun, DalysIntervalIsNearTheBest) {
  RunTask task = week();
  const double best = simulate_run(task).goodput();
  for (const double factor : {0.3, 3.0}) {
    RunTask other = task;
    other.reliability.interval_seconds *= factor;
    EXPECT_LT(simulate_run(other).goodput(), best);
  }
}

TEST(InjectedFaults, HoldUpTheStepAsDrawnOnesDo) {
  const auto with = [](const char* fault) {
    StepSimulator simulator(cost::load_hardware("selene"), simulated_gpt(), kLayout, {});
    simulator.inject(spec::parse_fault(fault));
    return simulator.run();
  };
  const SimulatedStep plain = step({});
  // Rank 5 is of copy 2, stage 0: two ranks split together, eight copies stand side by side in a stage.
  const SimulatedStep slow = with("slow rank 5 by 2 from step 1");
  EXPECT_EQ(slow.slowest, 2);
  EXPECT_EQ(slow.slow_devices, 1U);
  EXPECT_GT(slow.seconds, 1.5 * plain.seconds);
  const SimulatedStep stalled = with("stall rank 0 at step 1 for 3s");
  EXPECT_EQ(stalled.slowest, 0);
  EXPECT_NEAR(stalled.seconds, plain.seconds + 3, 1e-6);
  EXPECT_THROW(with("slow rank 64 by 2 from step 1"), ConfigError);
  EXPECT_THROW(with("disk full at step 3"), ConfigError);
}

TEST(InjectedFaults, CostARunWhatWasNotSaved) {
  RunTask task{.step_seconds = 10, .days = 1, .restart_seconds = 100};
  task.reliability = {.mtbf_seconds = 1e18, .checkpoint_seconds = 20, .interval_seconds = 100};
  const SimulatedRun plain = simulate_run(task);
  EXPECT_EQ(plain.failures, 0);
  task.faults = {spec::parse_fault("kill rank 3 at step 25"), spec::parse_fault("hang rank 0 at step 31"),
                 spec::parse_fault("stall rank 1 at step 8 for 7s")};
  const SimulatedRun hurt = simulate_run(task);
  EXPECT_EQ(hurt.failures, 2);
  EXPECT_NEAR(hurt.lost, 4 * 10 + 600 + 7, 1e-6);  // steps 21 to 24, nothing of 31, and what nobody noticed
  EXPECT_NEAR(hurt.restarts, 200, 1e-9);
}

}  // namespace
}  // namespace trireme::plan
