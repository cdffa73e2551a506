// What [pipeline] may say beside [layout] and [train]: each refusal names its key, and its hint helps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/spec/recipe.h"

namespace trireme::spec {
namespace {

using testing::Contains;
using testing::Not;

std::vector<std::string> keys_of(const Recipe& recipe) {
  std::vector<std::string> keys;
  for (const config::Problem& problem : find_problems(recipe)) keys.push_back(problem.key);
  return keys;
}

Recipe staged_recipe() {
  Recipe recipe;
  recipe.layout.pp = 4;
  return recipe;
}

TEST(PipelineConfig, StageRanksAreAllRanksOfThePipeline) {
  Recipe recipe = staged_recipe();
  recipe.pipeline.stage_ranks = {3, 1};
  EXPECT_THAT(keys_of(recipe), Not(Contains("pipeline.stage_ranks")));
  recipe.pipeline.schedule = "pipedream";
  EXPECT_THAT(keys_of(recipe), Not(Contains("pipeline.stage_ranks")));
  for (const std::vector<int>& wrong : {std::vector<int>{3, 2}, {4, 0}}) {
    recipe.pipeline.stage_ranks = wrong;
    EXPECT_THAT(keys_of(recipe), Contains("pipeline.stage_ranks"));
  }
  recipe.pipeline.stage_ranks = {3, 1};
  recipe.pipeline.split = "pipedream";
  EXPECT_THAT(keys_of(recipe), Contains("pipeline.stage_ranks"));
  recipe.pipeline.split = "count";
  recipe.pipeline.schedule = "gpipe";
  EXPECT_THAT(keys_of(recipe), Contains("pipeline.stage_ranks"));
}

TEST(PipelineConfig, ScatterGatherNeedsRanksWithTheSameBoundaryTensors) {
  Recipe recipe = staged_recipe();
  recipe.pipeline.scatter_gather = true;
  EXPECT_THAT(keys_of(recipe), Contains("pipeline.scatter_gather"));
  recipe.layout.tp = 2;
  EXPECT_THAT(keys_of(recipe), Not(Contains("pipeline.scatter_gather")));
  recipe.layout.sequence_parallel = true;
  EXPECT_THAT(keys_of(recipe), Contains("pipeline.scatter_gather"));
  recipe.layout.sequence_parallel = false;
  recipe.layout.pp = 1;
  EXPECT_THAT(keys_of(recipe), Contains("pipeline.scatter_gather"));
}

TEST(RecomputeConfig, FitsTheStagesAndItsBudget) {
  Recipe recipe;
  recipe.train.recompute = RecomputeKind::kStage;
  EXPECT_THAT(keys_of(recipe), Contains("train.recompute"));
  recipe.layout.pp = 2;
  EXPECT_THAT(keys_of(recipe), Not(Contains("train.recompute")));
  recipe.train.recompute = RecomputeKind::kRecursive;  // planned for each stage
  EXPECT_THAT(keys_of(recipe), Not(Contains("train.recompute")));
  recipe.layout.pp = 1;
  EXPECT_THAT(keys_of(recipe), Not(Contains("train.recompute")));
  recipe.train.recompute = RecomputeKind::kBudget;
  EXPECT_THAT(keys_of(recipe), Contains("train.recompute_gb"));
  recipe.train.recompute_gb = 2;
  EXPECT_THAT(keys_of(recipe), Contains("train.recompute"));  // a micro-batch of which size?
  recipe.train.micro_batch_size = 1;
  EXPECT_THAT(keys_of(recipe), Not(Contains("train.recompute")));
  recipe.train.recompute = RecomputeKind::kFull;
  EXPECT_THAT(keys_of(recipe), Contains("train.recompute_gb"));
}

}  // namespace
}  // namespace trireme::spec
