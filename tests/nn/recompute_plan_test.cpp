// Plans of what is recomputed: exact against all plans there are, and as large as Chen et al. say.
#include "trireme/nn/recompute_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::nn {
namespace {

/// Every plan of blocks [i, j), segments in segments. `alone`: a segment of all of them is a plan too.
std::vector<RecomputePlan> all_plans(std::int64_t i, std::int64_t j, bool alone) {
  if (i == j) return {{}};
  std::vector<RecomputePlan> plans;
  const auto followed_by = [&](const RecomputePart& part) {
    for (RecomputePlan rest : all_plans(part.end, j, true)) {
      rest.insert(rest.begin(), part);
      plans.push_back(std::move(rest));
    }
  };
  followed_by({.begin = i, .end = i + 1});
  for (std::int64_t k = i + 1; k <= (alone ? j : j - 1); ++k) {
    for (const RecomputePlan& inside : all_plans(i, k, false)) followed_by({.begin = i, .end = k, .inside = inside});
  }
  return plans;
}

std::vector<BlockCost> drawn_blocks(std::size_t count, std::uint64_t seed, bool alike) {
  std::vector<double> draws(3 * count);
  Random(seed, "tests/recompute_plan").fill_uniform(0, draws);
  std::vector<BlockCost> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    const double* draw = &draws[alike ? 0 : 3 * i];
    const double input = 1 + std::floor(3 * draw[0]);
    blocks.push_back({.saved = input + 1 + std::floor(7 * draw[1]), .input = input, .forward = 1 + draw[2]});
  }
  return blocks;
}

TEST(RecomputePlan, WithinABudgetIsTheCheapestOfAllPlans) {
  int nested = 0;
  for (std::size_t count = 1; count <= 5; ++count) {
    const std::vector<RecomputePlan> plans = all_plans(0, static_cast<std::int64_t>(count), true);
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const std::vector<BlockCost> blocks = drawn_blocks(count, seed, seed % 2 == 0);
      std::vector<double> peaks, times;
      for (const RecomputePlan& plan : plans) {
        peaks.push_back(peak_bytes(plan, blocks));
        times.push_back(recomputed_time(plan, blocks));
      }
      for (int budget = 1; budget <= 40; ++budget) {
        double best = std::numeric_limits<double>::infinity();
        for (std::size_t i = 0; i < plans.size(); ++i) {
          if (peaks[i] <= budget) best = std::min(best, times[i]);
        }
        if (std::isinf(best)) {
          EXPECT_THROW(plan_within(blocks, budget, budget), ConfigError) << count << " " << seed << " " << budget;
          continue;
        }
        const RecomputePlan plan = plan_within(blocks, budget, budget);
        EXPECT_LE(peak_bytes(plan, blocks), budget);
        EXPECT_NEAR(recomputed_time(plan, blocks), best, 1e-12) << count << " " << seed << " " << budget;
        for (const RecomputePart& part : plan) {
          for (const RecomputePart& inner : part.inside) nested += inner.recomputed();
        }
      }
    }
  }
  EXPECT_GT(nested, 10) << "or no budget was tight enough for recursion";
}

/// One extra forward at most in 2 sqrt(n) inputs and a block each: Chen's segments are among the plans.
TEST(RecomputePlan, InTheMemoryOfSqrtSegmentsRunsForwardOnceMoreAtMost) {
  for (const std::int64_t n : {16, 36, 100}) {
    const std::vector<BlockCost> blocks(static_cast<std::size_t>(n), {.saved = 10, .input = 1, .forward = 1});
    const auto root = static_cast<double>(std::llround(std::sqrt(n)));
    const double budget = root + 10 * root;  // an input for each segment, and the activations of one
    const RecomputePlan plan = plan_within(blocks, budget, static_cast<int>(budget));
    EXPECT_LE(peak_bytes(plan, blocks), budget);
    EXPECT_LE(recomputed_time(plan, blocks), static_cast<double>(n));
  }
}

/// g(n) = k + g(n / (k+1)) with k = 1: log2(n) inputs, and each level runs half of its blocks again.
TEST(RecomputePlan, RecursionTakesLogarithmicMemory) {
  for (const std::int64_t n : {1, 2, 3, 8, 13, 64, 128}) {
    const std::vector<BlockCost> blocks(static_cast<std::size_t>(n), {.saved = 20, .input = 1, .forward = 1});
    const RecomputePlan plan = recursive_plan(n);
    const double levels = std::ceil(std::log2(static_cast<double>(n)));
    EXPECT_LE(peak_bytes(plan, blocks), levels + 20) << n;
    EXPECT_LE(recomputed_time(plan, blocks), static_cast<double>(n) * levels / 2 + 1e-9) << n;
  }
  const std::vector<BlockCost> blocks(64, {.saved = 20, .input = 1, .forward = 1});
  EXPECT_EQ(recomputed_time(recursive_plan(64), blocks), 64.0 * 6 / 2);
}

TEST(RecomputePlan, SaysWhatTheLeastBudgetIs) {
  const std::vector<BlockCost> blocks(8, {.saved = 1e9, .input = 1e8, .forward = 1});
  try {
    plan_within(blocks, 1e9);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.hint(), testing::HasSubstr("GiB"));
  }
  // All of it fits: nothing runs again.
  EXPECT_EQ(recomputed_time(plan_within(blocks, 8.1e9), blocks), 0);
}

}  // namespace
}  // namespace trireme::nn
