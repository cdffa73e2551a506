#include "trireme/train/engine/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "trireme/base/error.h"

namespace trireme::train {
namespace {

spec::Recipe step_plan_recipe(std::int64_t batch) {
  spec::Recipe recipe;
  recipe.batch.global_batch_tokens = batch;
  recipe.train.steps = 10;
  return recipe;
}

/// Whatever the number of ranks and micro-batches, a step is the same samples in the same order.
TEST(StepPlan, CutsTheSameSamplesForAnyRanks) {
  const spec::Recipe recipe = step_plan_recipe(7 * 16);
  for (const int ranks : {1, 2, 3, 7, 9}) {
    for (const std::int64_t micro_batch_size : {0, 1, 2, 100}) {
      spec::Position position;
      for (int step = 0; step < 3; ++step) {
        std::vector<std::int64_t> all;
        spec::Position after;
        for (int rank = 0; rank < ranks; ++rank) {
          const StepPlan plan = plan_step(recipe, position, {rank, ranks, 16, micro_batch_size});
          for (const auto& micro : plan.microbatches) {
            EXPECT_FALSE(micro.empty());
            if (micro_batch_size > 0) {
              EXPECT_LE(static_cast<std::int64_t>(micro.size()), micro_batch_size);
            }
            all.insert(all.end(), micro.begin(), micro.end());
          }
          after = plan.after;
        }
        std::vector<std::int64_t> expected(7);
        std::iota(expected.begin(), expected.end(), 7 * step);
        EXPECT_EQ(all, expected) << ranks << " ranks, micro-batches of " << micro_batch_size;
        position = after;
      }
    }
  }
}

TEST(StepPlan, FollowsAGrowingBatch) {
  spec::Recipe recipe = step_plan_recipe(64);
  recipe.batch.kind = spec::BatchKind::kRamp;
  recipe.batch.start = 16;
  recipe.batch.over = 160;
  recipe.batch.multiple = 16;
  spec::Position position;
  std::int64_t next = 0;
  for (int step = 0; step < 12; ++step) {
    const StepPlan plan = plan_step(recipe, position, {0, 1, 16, 0});
    EXPECT_EQ(plan.first_sample, next);
    next += plan.samples;
    position = plan.after;
  }
  EXPECT_EQ(position.tokens, next * 16);
}

/// Ranks that meet in every micro-batch run equally many, whoever has how many rows; no row twice, none lost.
TEST(StepPlan, LockstepGivesAllRanksAsManyMicrobatches) {
  for (const std::int64_t rows : {1, 2, 7, 8, 13}) {
    for (const int ranks : {1, 2, 3, 5}) {
      for (const std::int64_t micro_batch_size : {0, 1, 2, 3}) {
        for (const bool weighted : {false, true}) {
          std::vector<double> weights;
          for (int rank = 0; weighted && rank < ranks; ++rank) weights.push_back(1 + rank % 3);
          std::vector<std::int64_t> all;
          std::optional<std::size_t> micros;
          for (int rank = 0; rank < ranks; ++rank) {
            const StepPlan plan = plan_step(step_plan_recipe(rows * 16), {},
                                            {rank, ranks, 16, micro_batch_size, weights, /*lockstep=*/true});
            EXPECT_EQ(micros.value_or(plan.microbatches.size()), plan.microbatches.size());
            micros = plan.microbatches.size();
            for (std::size_t i = 0; i < *micros; ++i) {
              const std::vector<std::int64_t>& micro = plan.microbatches[i];
              ASSERT_FALSE(micro.empty());
              if (i + plan.fillers >= *micros) continue;
              if (micro_batch_size > 0) {
                EXPECT_LE(static_cast<std::int64_t>(micro.size()), micro_batch_size);
              }
              all.insert(all.end(), micro.begin(), micro.end());
            }
          }
          std::vector<std::int64_t> expected(static_cast<std::size_t>(rows));
          std::iota(expected.begin(), expected.end(), 0);
          EXPECT_EQ(all, expected) << rows << " rows on " << ranks << " ranks by " << micro_batch_size;
        }
      }
    }
  }
}

/// Where all have equally many, lockstep changes nothing.
TEST(StepPlan, LockstepCutsEvenSharesAsEver) {
  const StepPlan plain = plan_step(step_plan_recipe(10 * 16), {}, {1, 2, 16, 2}),
                 lockstep = plan_step(step_plan_recipe(10 * 16), {}, {1, 2, 16, 2, {}, true});
  EXPECT_EQ(plain.microbatches, lockstep.microbatches);
  EXPECT_EQ(plain.microbatches.size(), 3U);
  EXPECT_EQ(lockstep.fillers, 0U);
}

TEST(LastStep, IsGivenOrFollowsFromTokens) {
  spec::Recipe recipe = step_plan_recipe(64);
  EXPECT_EQ(last_step(recipe), 10);
  recipe.train.steps.reset();
  EXPECT_THROW(last_step(recipe), InternalError);
  recipe.train.tokens = 130;
  EXPECT_EQ(last_step(recipe), 3);
}

}  // namespace
}  // namespace trireme::train
