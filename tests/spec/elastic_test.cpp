#include "trireme/spec/elastic.h"

#include <gtest/gtest.h>

#include "trireme/spec/recipe.h"

namespace trireme::spec {
namespace {

LayoutConfig fitted(const LayoutConfig& layout, int ranks) { return fit_ranks({layout}, ranks).layout; }

TEST(FitRanks, ReplicasGiveWayFirst) {
  const LayoutConfig before{.dp = 4, .tp = 2, .pp = 2};
  EXPECT_EQ(fitted(before, 16), before);
  EXPECT_EQ(fitted(before, 8), (LayoutConfig{.dp = 2, .tp = 2, .pp = 2}));
  EXPECT_EQ(fitted(before, 12), (LayoutConfig{.dp = 3, .tp = 2, .pp = 2}));
  EXPECT_EQ(fitted({.tp = 2}, 6), (LayoutConfig{.tp = 2}));  // who left dp open finds it open
}

TEST(FitRanks, ThenSequencesThenStagesThenMatrices) {
  const LayoutConfig before{.dp = 1, .tp = 4, .pp = 2, .cp = 2};
  EXPECT_EQ(fitted(before, 8), (LayoutConfig{.dp = 1, .tp = 4, .pp = 2}));
  EXPECT_EQ(fitted(before, 4), (LayoutConfig{.dp = 1, .tp = 4}));
  EXPECT_EQ(fitted(before, 2), (LayoutConfig{.dp = 1, .tp = 2}));
  EXPECT_EQ(fitted(before, 3), (LayoutConfig{.dp = 3}));
}

TEST(FitRanks, WhatHungOnAnAxisGoesWithIt) {
  LayoutConfig before{.dp = 4, .tp = 2, .zero = 2, .zero_group = 4, .sequence_parallel = true};
  before.dp_batch_weights = {1, 2, 3, 4};
  const LayoutConfig three = fitted(before, 3);
  EXPECT_EQ(three.zero, 2);
  EXPECT_FALSE(three.zero_group);
  EXPECT_FALSE(three.sequence_parallel);
  EXPECT_TRUE(three.dp_batch_weights.empty());
  PipelineConfig pipeline{.schedule = "interleaved", .virtual_stages = 2};
  EXPECT_EQ(fit_ranks({{.pp = 2}, pipeline}, 1).pipeline, PipelineConfig{});
  ParallelConfig staged{{.tp = 2, .pp = 4}, {.stage_ranks = {3, 1}, .scatter_gather = true}};
  staged.partition_activations = true;
  EXPECT_EQ(fit_ranks(staged, 16), staged);
  EXPECT_TRUE(fit_ranks(staged, 4).pipeline.stage_ranks.empty());
  EXPECT_TRUE(fit_ranks(staged, 4).pipeline.scatter_gather);
  EXPECT_FALSE(fit_ranks(staged, 3).partition_activations);
  EXPECT_FALSE(fit_ranks(staged, 3).pipeline.scatter_gather);
}

/// Whatever comes out has as many ranks as there are, and no problem of its own.
TEST(FitRanks, AlwaysFits) {
  for (int tp : {1, 2, 3, 4}) {
    for (int pp : {1, 2, 6}) {
      for (int cp : {1, 2}) {
        for (int ranks = 1; ranks <= 24; ++ranks) {
          const ParallelConfig found = fit_ranks({{.dp = 2, .tp = tp, .pp = pp, .cp = cp}}, ranks);
          EXPECT_EQ(found.layout.ranks_per_copy() * *found.layout.dp, ranks);
          Recipe recipe;
          recipe.layout = found.layout;
          recipe.pipeline = found.pipeline;
          recipe.comm.ranks = ranks;
          EXPECT_TRUE(find_problems(recipe).empty()) << tp << pp << cp << ranks;
        }
      }
    }
  }
}

/// A world as brute force finds it: of those that are allowed, first those with the recipe's tp, pp and cp, then the
/// largest.
TEST(FitWorld, IsTheLargestThatTheRulesAllow) {
  // Rules of a model with 12 heads and 8 layers, of which data parallelism takes at most 5 copies.
  const auto allowed = [](const ParallelConfig& config, int ranks) {
    const LayoutConfig& layout = config.layout;
    return 12 % layout.tp == 0 && 8 % layout.pp == 0 && ranks / layout.ranks_per_copy() <= 5 && ranks != 7;
  };
  for (const int tp : {1, 2, 3, 4}) {
    for (const int pp : {1, 2}) {
      const ParallelConfig config{{.dp = 2, .tp = tp, .pp = pp}};
      for (int available = 1; available <= 26; ++available) {
        const auto world = fit_world(config, available, allowed);
        ASSERT_TRUE(world) << tp << pp << available;
        EXPECT_EQ(world->config, fit_ranks(config, world->ranks));
        EXPECT_EQ(world->config.layout.ranks_per_copy() * *world->config.layout.dp, world->ranks);
        EXPECT_TRUE(allowed(world->config, world->ranks));
        int best = 0;
        bool best_keeps = false;
        for (int ranks = 1; ranks <= available; ++ranks) {
          const ParallelConfig one = fit_ranks(config, ranks);
          const bool keeps = one.layout.tp == tp && one.layout.pp == pp;
          if (!allowed(one, ranks) || keeps < best_keeps) continue;
          best = ranks;
          best_keeps = keeps;
        }
        EXPECT_EQ(world->ranks, best) << "tp " << tp << " pp " << pp << " on " << available;
      }
    }
  }
  EXPECT_FALSE(fit_world({}, 4, [](const ParallelConfig&, int) { return false; }));
}

TEST(FitWorld, LeavesRanksOverRatherThanSplitDifferently) {
  const auto any = [](const ParallelConfig&, int) { return true; };
  const ParallelConfig config{{.dp = 4, .tp = 2}};
  EXPECT_EQ(fit_world(config, 8, any)->ranks, 8);
  EXPECT_EQ(fit_world(config, 7, any)->ranks, 6);
  EXPECT_EQ(fit_world(config, 7, any)->config.layout.tp, 2);
  EXPECT_EQ(fit_world(config, 1, any)->config.layout.tp, 1) << "nothing else is left";
}

}  // namespace
}  // namespace trireme::spec
