// Proteus: whatever machines come and go, no committed clock is lost and the weights are those of one machine.
#include "trireme/agile/agile_run.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::agile {
namespace {

/// Least squares: each partition has a few samples drawn from a seed.
AgileJob least_squares(std::vector<Change> changes) {
  AgileJob job;
  job.reliable = 2;
  job.shards = 3;
  job.partitions = 6;
  job.clocks = 8;
  job.learning_rate = 0.05;
  job.weights.assign(7, 0.0);
  job.changes = std::move(changes);
  job.gradient = [](int partition, int clock, const std::vector<double>& weights) {
    const Random random(5, "agile/" + std::to_string(partition));
    std::vector<double> gradient(weights.size(), 0.0);
    for (std::uint64_t sample = 0; sample < 4; ++sample) {
      const std::uint64_t at = (sample + static_cast<std::uint64_t>(clock)) * 100;
      double error = 0;
      for (std::size_t i = 0; i < weights.size(); ++i)
        error += random.normal(at + i) * (weights[i] - static_cast<double>(i));
      for (std::size_t i = 0; i < weights.size(); ++i) gradient[i] += error * random.normal(at + i) / 24;
    }
    return gradient;
  };
  return job;
}

void expect_every_clock_once(const AgileResult& result, int clocks) {
  ASSERT_EQ(static_cast<int>(result.commits.size()), clocks);
  for (int clock = 1; clock <= clocks; ++clock) EXPECT_EQ(result.commits[static_cast<std::size_t>(clock - 1)], clock);
}

TEST(Agile, AllSpotMachinesGoneAtOnceLosesNoCommittedClock) {
  const AgileJob job = least_squares({{0, 10}, {4, 0}});
  const std::vector<double> serial = run_serial(job);
  int redone = 0;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const AgileResult result = run_agile(job, seed);
    EXPECT_EQ(result.weights, serial) << "the same bits, seed " << seed;
    expect_every_clock_once(result, job.clocks);
    EXPECT_EQ(result.epochs, 2);
    EXPECT_EQ(result.stages.front(), plan::TierStage::kActiveServers);
    EXPECT_EQ(result.stages.back(), plan::TierStage::kReliableServers);
    redone += result.redone;
  }
  EXPECT_GT(redone, 0) << "servers were ahead of what was committed, so something was lost that may be";
}

TEST(Agile, EveryStageComputesTheSameBits) {
  for (const int spot : {0, 1, 5, 30}) {
    const AgileJob job = least_squares({{0, spot}});
    const AgileResult result = run_agile(job, 3);
    EXPECT_EQ(result.weights, run_serial(job)) << spot;
    EXPECT_EQ(result.stages.front(), plan::tier_stage(2, spot));
  }
}

TEST(Agile, MachinesThatComeTakeOver) {
  const AgileJob job = least_squares({{0, 0}, {2, 4}, {5, 30}});
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    const AgileResult result = run_agile(job, seed);
    EXPECT_EQ(result.weights, run_serial(job));
    EXPECT_EQ(result.epochs, 3);
    EXPECT_EQ(result.stages.back(), plan::TierStage::kNoReliableWorkers);
    expect_every_clock_once(result, job.clocks);
  }
}

TEST(Agile, NeedsAReliableMachine) {
  AgileJob job = least_squares({{0, 4}});
  job.reliable = 0;
  EXPECT_THROW(run_agile(job, 0), ConfigError);
}

}  // namespace
}  // namespace trireme::agile
