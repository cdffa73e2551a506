#include "trireme/plan/goodput.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/plan/llama_405b.h"
#include "trireme/plan/published.h"

namespace trireme::plan {
namespace {

TEST(CheckpointInterval, IsYoungsAndDalys) {
  struct Row {
    double checkpoint, hours, young, daly, waste;
  };
  // 2.78 h and 3.09 h: between all and between unexpected interruptions of Llama 3's 54 days, to more digits below.
  for (const Row& row : {Row{60, 24, 3219.9, 3180.1, 3.82}, Row{300, 24, 7200.0, 7001.4, 8.82}}) {
    const double mtbf = row.hours * 3600;
    EXPECT_NEAR(young_interval(row.checkpoint, mtbf), row.young, 0.05);
    const double interval = daly_interval(row.checkpoint, mtbf);
    EXPECT_NEAR(interval, row.daly, 0.05);
    EXPECT_NEAR(100 * (expected_slowdown(interval, row.checkpoint, mtbf, 0) - 1), row.waste, 0.005);
  }
  EXPECT_EQ(daly_interval(500, 100), 100);
}

TEST(CheckpointInterval, OfDalyIsTheMinimumOfTheExactModel) {
  for (const double checkpoint : {1., 10., 100., 1000.}) {
    const double mtbf = 10000, interval = daly_interval(checkpoint, mtbf);
    double best = 1e18, at = 0;
    for (double trial = interval * 0.8; trial < interval * 1.2; trial *= 1.0002) {
      const double slowdown = expected_slowdown(trial, checkpoint, mtbf, 30);
      if (slowdown < best) best = slowdown, at = trial;
    }
    EXPECT_NEAR(interval, at, 0.002 * at) << checkpoint;
  }
}

TEST(ExpectedSlowdown, IsWhatFailingAtRandomGives) {
  const double interval = 1000, checkpoint = 50, mtbf = 5000, restart = 100;
  std::mt19937_64 random(1);
  std::exponential_distribution<double> failure(1 / mtbf);
  double wall = 0;
  constexpr int kIntervals = 200000;
  for (int done = 0; done < kIntervals; ++done) {
    double need = interval + checkpoint;
    for (double next = failure(random); next < need; next = failure(random)) {
      wall += next;
      need = restart + interval + checkpoint;  // after a failure the restart comes first
    }
    wall += need;
  }
  EXPECT_NEAR(wall / (kIntervals * interval), expected_slowdown(interval, checkpoint, mtbf, restart),
              0.02 * wall / (kIntervals * interval));
}

TEST(Goodput, OfLlama3On16384DevicesIsAboveNinetyPercentAsPrinted) {
  const Job job = llama_405b();
  const Goodput goodput = estimate_goodput(cost::load_hardware("llama3-h100-16k"), job, 16384);
  EXPECT_NEAR(goodput.mtbf_seconds / 3600, 54 * 24 / 419.0, 0.01 * 54 * 24 / 419.0);
  EXPECT_GT(goodput.share, 0.9);
  EXPECT_LT(goodput.share, 0.99);
}

TEST(Goodput, TheCheckpointOfATrillionIsThePublishedSize) {
  Job job;
  job.shape = shape_of({.num_layers = 128, .hidden_size = 25600, .num_heads = 160, .vocab_size = 51200});
  EXPECT_NEAR(estimate_goodput(cost::load_hardware("selene"), job, 3072).checkpoint_bytes, 13.8e12, 0.03 * 13.8e12);
}

}  // namespace
}  // namespace trireme::plan
