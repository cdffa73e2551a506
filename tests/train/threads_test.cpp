// Short runs with everything that has threads: ranks, progress of collectives beside backward, prefetch, checkpoints
// written beside steps, updates on the host beside the next step. What `make tsan-tensors` looks at; the numbers are
// compared elsewhere.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "tests/train/support.h"
#include "trireme/plan/layout_matrix.h"
#include "trireme/train/run/run.h"

namespace trireme::train {
namespace {

spec::Recipe threaded_recipe(const std::string& layout) {
  spec::Recipe recipe = small_recipe(spec::Family::kLlama);
  recipe.model.num_layers = 4;
  recipe.model.num_kv_heads = 2;
  recipe.model.tied = false;
  recipe.batch.global_batch_tokens = 4 * recipe.data.seq_len;
  recipe.train.micro_batch_size = 1;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  const plan::LayoutCase parsed = plan::parse_layout(layout);
  recipe.layout = parsed.layout;
  recipe.layout.bucket_mb = 0.005;  // several buckets on their way at once
  recipe.pipeline = parsed.pipeline;
  return recipe;
}

void train_steps(const spec::Recipe& recipe, int ranks, int steps) {
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank&) {
    for (int step = 0; step < steps; ++step) EXPECT_TRUE(std::isfinite(trainer.step().loss));
  });
}

TEST(Threads, RanksOfEveryAxis) {
  for (const char* layout : {"zero=2", "tp=2 sp tp_overlap zero=3", "cp=2 cp_kind=ring zero=1"})
    train_steps(threaded_recipe(layout), 4, 2);
}

TEST(Threads, PipelinesThatOverlapSteps) {
  train_steps(threaded_recipe("pp=2 tp=2 schedule=pipedream-2bw"), 4, 3);
  spec::Recipe recipe = threaded_recipe("pp=2 zero=1 schedule=zb-h2");
  recipe.pipeline.drain_every = 2;
  train_steps(recipe, 4, 2);
}

TEST(Threads, UpdatesBesideTheNextStep) {
  spec::Recipe recipe = threaded_recipe("zero=2");
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  recipe.layout.delayed_update = true;
  recipe.layout.offload_warmup = 0;
  train_steps(recipe, 2, 3);
}

/// Directory, metrics, evaluation, prefetch, and a checkpoint under way beside steps.
TEST(Threads, ARunThatSavesAndGoesOn) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("threads-" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  RunRequest request{.recipe = threaded_recipe("zero=1"), .folder = folder};
  request.recipe.checkpoint.every = 1;
  request.recipe.train.threads = 1;  // the sanitizer does not see the barriers of OpenMP
  request.recipe.train.steps = 3;
  comm::run_ranks(2, [&](comm::Rank& rank) { EXPECT_EQ(run(request, rank).step, 3); });
  request.recipe.train.steps = 4;
  request.resume = true;
  comm::run_ranks(2, [&](comm::Rank& rank) { EXPECT_EQ(run(request, rank).step, 4); });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trireme::train
