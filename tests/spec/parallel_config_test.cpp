#include "trireme/spec/parallel_config.h"

#include <gtest/gtest.h>

#include "trireme/spec/rules.h"

namespace trireme::spec {
namespace {

/// What the planner found is what the recipe says, key for key.
TEST(ParallelConfig, GoesIntoARecipeAndBack) {
  ParallelConfig config{.layout = {.dp = 8, .tp = 2, .pp = 4, .cp = 2, .zero = 2, .zero_group = 4},
                        .pipeline = {.schedule = "zb-v", .virtual_stages = 2, .split = "layers.2,layers.4"},
                        .micro_batch_size = 3,
                        .recompute = RecomputeKind::kEvery,
                        .recompute_every = 3,
                        .recompute_norms = true};
  config.layout.sequence_parallel = true;
  config.layout.offload = OffloadKind::kOptimizer;
  config.layout.cp_kind = ContextKind::kRing;
  Recipe recipe;
  apply(config, recipe);
  EXPECT_EQ(recipe.comm.ranks, 128);
  EXPECT_EQ(parallel_config(recipe, 128, 48), config);
}

TEST(ParallelConfig, CompletesWhatARecipeLeavesOpen) {
  Recipe recipe;
  recipe.layout.tp = 2;
  const ParallelConfig plain = parallel_config(recipe, 8, 10);
  EXPECT_EQ(plain.dp(), 4);
  EXPECT_EQ(plain.micro_batch_size, 3);  // all that a replica takes
  recipe.layout.pp = 2;
  EXPECT_EQ(parallel_config(recipe, 8, 10).micro_batch_size, 1);
  EXPECT_EQ(parallel_config(recipe, 8, 10).micros(10), 5);
}

TEST(ParallelConfig, ShardsOverAllReplicasOrGroupsOfThem) {
  ParallelConfig config{.layout = {.dp = 8, .cp = 2}};
  EXPECT_EQ(config.zero_ranks(), 16);
  config.layout.zero_group = 4;
  EXPECT_EQ(config.zero_ranks(), 4);
  config.layout.zero_group = 8;
  EXPECT_EQ(config.zero_ranks(), 16);
}

/// As rules and trainer count: by the replica that has most.
TEST(ParallelConfig, CountsMicroBatchesOfUnevenShares) {
  Recipe recipe;
  recipe.layout.dp_batch_weights = {3, 1};
  EXPECT_EQ(parallel_config(recipe, 2, 8).micro_batch_size, 6);
  recipe.train.micro_batch_size = 1;
  EXPECT_EQ(parallel_config(recipe, 2, 8).micros(8), 6);
  EXPECT_EQ(parallel_config(recipe, 4, 8).micros(8), 2);  // weights of other ranks are a rule's to refuse
}

/// The rule that refuses a layout first, and its hint.
std::string first_of(const RunSetup& run) {
  const auto refusals = find_refusals(run, RuleNeeds::kLayout, RuleNeeds::kLayout);
  return refusals.empty() ? std::string() : std::string(refusals[0].rule->name) + ": " + refusals[0].problem.hint;
}

/// Applying a hint removes the problem.
TEST(ExpertLayouts, DivideExpertsAndRanksOrSayWhatDoes) {
  RunSetup run{.shape = family_shape(Family::kMistral), .seq_len = 64, .rows = 16, .ranks = 8};
  run.recipe.layout.ep = 2;
  EXPECT_EQ(first_of(run), "ep-shards-experts: set layout.ep = 1");
  run.shape.experts = {.num_experts = 12, .top_k = 2};
  EXPECT_EQ(first_of(run), "");
  run.recipe.layout.ep = 8;
  EXPECT_EQ(first_of(run), "ep-divides: set layout.ep = 4");
  run.recipe.layout.ep = 4;
  EXPECT_EQ(first_of(run), "");
  run.ranks = 12;
  run.recipe.layout = {.ep = 3, .zero = 1, .zero_group = 4};
  EXPECT_EQ(first_of(run), "ep-nests-in-zero-group: set layout.zero_group = 3");
  run.recipe.layout.zero_group = 3;
  EXPECT_EQ(first_of(run), "");
  run.recipe.layout = {.ep = 6};
  run.shape.experts.node_ranks = 4;
  EXPECT_EQ(first_of(run), "ep-nodes-divide: set experts.node_ranks = 2");
  run.shape.experts.node_ranks = 2;
  EXPECT_EQ(first_of(run), "");
  run.shape.experts.redundant_experts = 8, run.shape.experts.rebalance_every = 10;
  EXPECT_EQ(first_of(run), "redundant-experts-divide: set experts.redundant_experts = 12");
  run.shape.experts.redundant_experts = 12;
  EXPECT_EQ(first_of(run), "");
}

TEST(RelativePositions, GoWithContextParallelismAndStages) {
  RunSetup run{.shape = family_shape(Family::kT5), .seq_len = 64, .rows = 16, .ranks = 4};
  run.recipe.layout = {.tp = 2};
  EXPECT_EQ(first_of(run), "");
  run.recipe.layout = {.cp = 2};
  EXPECT_EQ(first_of(run), "");
  run.recipe.layout = {.pp = 2};
  EXPECT_EQ(first_of(run), "");
}

}  // namespace
}  // namespace trireme::spec
