// Batches that ranks do not divide, where ranks meet in every micro-batch: pipelines side by side, and ZeRO 2 and 3.
#include <gtest/gtest.h>

#include "tests/train/support.h"

namespace trireme::train {
namespace {

using spec::Family;
using spec::Precision;

/// Seven rows in fp64, so that a lost row shows.
spec::Recipe seven_rows() {
  spec::Recipe recipe = small_recipe(Family::kLlama, Precision::kFp64);
  recipe.model.num_layers = 4;
  recipe.batch.global_batch_tokens = 7 * 12;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  return recipe;
}

std::string differences(const VerifyResult& result) {
  return result.gradients.name + " " + std::to_string(result.gradients.relative) + ", " + result.weights.name + " " +
         std::to_string(result.weights.relative);
}

TEST(UnevenBatch, ShardedGradientsAndWeightsEqualOneRank) {
  for (const int zero : {2, 3}) {
    for (const std::optional<std::int64_t> micro_batch_size : {std::optional<std::int64_t>{}, {1}, {2}}) {
      for (const std::int64_t rows : {2, 7}) {  // of three ranks, one has none of two
        spec::Recipe recipe = seven_rows();
        recipe.layout.zero = zero;
        recipe.batch.global_batch_tokens = rows * 12;
        recipe.train.micro_batch_size = micro_batch_size;
        const VerifyResult result = verify_beside_one_rank(recipe, 3, 3);
        EXPECT_TRUE(result.equal) << "ZeRO-" << zero << ", " << rows << " rows: " << differences(result);
      }
    }
  }
}

TEST(UnevenBatch, WeightedSharesOfThemToo) {
  for (const int zero : {2, 3}) {
    for (const std::optional<std::int64_t> micro_batch_size : {std::optional<std::int64_t>{}, {1}, {3}}) {
      spec::Recipe recipe = seven_rows();
      recipe.layout.zero = zero;
      recipe.layout.dp_batch_weights = {3, 1};
      recipe.train.micro_batch_size = micro_batch_size;
      const VerifyResult result = verify_beside_one_rank(recipe, 2, 3);
      EXPECT_TRUE(result.equal) << "ZeRO-" << zero << ": " << differences(result);
    }
  }
}

TEST(UnevenBatch, PipelinesSideBySideEqualOneRank) {
  for (const char* kind : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe"}) {
    for (const bool weighted : {false, true}) {
      if (weighted && std::string(kind) == "dualpipe") continue;  // 5 micro-batches cannot enter at both ends
      spec::Recipe recipe = seven_rows();
      recipe.layout.pp = 2;
      recipe.pipeline.schedule = kind;
      if (std::string(kind) == "interleaved") recipe.pipeline.virtual_stages = 2;
      if (weighted) recipe.layout.dp_batch_weights = {1, 2};
      const VerifyResult result = verify_beside_one_rank(recipe, 4, 3);
      EXPECT_TRUE(result.equal) << kind << (weighted ? ", weighted: " : ": ") << differences(result);
    }
  }
}

TEST(UnevenBatch, PipelinesWithShardsAndTensorParallelismEqualOneRank) {
  for (const int zero : {1, 2, 3}) {
    spec::Recipe recipe = seven_rows();
    recipe.layout = {.tp = 2, .pp = 2, .zero = zero};
    const VerifyResult result = verify_beside_one_rank(recipe, 8, 2);
    EXPECT_TRUE(result.equal) << "ZeRO-" << zero << ": " << differences(result);
  }
}

TEST(UnevenBatch, StepsThatRunTogetherEqualTheirOwnMathematics) {
  for (const char* kind : {"pipedream", "pipedream-2bw", "xpipe", "zb-h2"}) {
    spec::Recipe recipe = seven_rows();
    recipe.model.tied = false;
    recipe.layout.pp = 2;
    recipe.pipeline.schedule = kind;
    if (std::string(kind) == "zb-h2") recipe.pipeline.drain_every = 2;
    recipe.train.steps = 4;
    const VerifyResult result = verify_beside_one_rank(recipe, 4, 4);
    EXPECT_TRUE(result.equal) << kind << ": " << differences(result);
  }
}

}  // namespace
}  // namespace trireme::train
