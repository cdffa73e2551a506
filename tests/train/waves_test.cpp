// HetPipe on thread ranks: virtual workers in waves beside their serial mathematics and beside synchronous training.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "tests/train/support.h"
#include "trireme/base/error.h"

namespace trireme::train {
namespace {

/// Virtual workers of so many stages, with waves of so many minibatches.
spec::Recipe in_waves(int stages, int workers, int minibatches, const std::string& schedule) {
  spec::Recipe recipe = small_recipe(spec::Family::kLlama, spec::Precision::kFp64);
  recipe.model.num_layers = 4;
  recipe.model.tied = false;
  recipe.batch.global_batch_tokens = std::int64_t{12} * workers * minibatches;
  recipe.train.micro_batch_size = 1;
  recipe.layout.pp = stages;
  recipe.pipeline.schedule = schedule;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  recipe.optim.kind = spec::OptimizerKind::kSgd;
  recipe.optim.learning_rate = 0.2;
  recipe.optim.momentum = recipe.optim.weight_decay = recipe.optim.grad_clip_norm = 0;
  return recipe;
}

TEST(WavesOfTraining, EqualTheirSerialMathematics) {
  struct Case {
    int stages, workers, minibatches;
    const char* schedule;
    std::optional<int> drain_every = {};
  };
  for (const Case& one : {Case{2, 1, 2, "hetpipe"}, Case{2, 2, 2, "hetpipe"}, Case{2, 2, 3, "hetpipe:1"},
                          Case{3, 2, 1, "hetpipe:2"}, Case{2, 2, 1, "hetpipe"}, Case{2, 3, 2, "hetpipe:4", 3}}) {
    spec::Recipe recipe = in_waves(one.stages, one.workers, one.minibatches, one.schedule);
    recipe.pipeline.drain_every = one.drain_every;
    recipe.train.steps = 6;
    const VerifyResult result = verify_beside_one_rank(recipe, one.stages * one.workers, 6);
    EXPECT_TRUE(result.equal) << one.schedule << " on " << one.workers << " x " << one.stages << ", " << one.minibatches
                              << ": " << result.gradients.name << " " << result.gradients.relative << ", "
                              << result.weights.name << " " << result.weights.relative;
  }
}

/// Virtual workers that cut the model at different entries, as unequal devices want it (the hybrid allocation).
TEST(WavesOfTraining, OfVirtualWorkersWithSplitsOfTheirOwnEqualTheirSerialMathematics) {
  struct Case {
    int stages, workers, minibatches;
    const char *schedule, *split;
  };
  for (const Case& one :
       {Case{2, 2, 2, "hetpipe:1", "size:3,1;size:1,3"}, Case{2, 3, 2, "hetpipe", "layers.1;layers.3;layers.2"},
        Case{3, 2, 1, "hetpipe:2", "layers.1,layers.2;layers.2,layers.3"}, Case{2, 2, 3, "hetpipe:4", "count;norm"}}) {
    spec::Recipe recipe = in_waves(one.stages, one.workers, one.minibatches, one.schedule);
    recipe.pipeline.split = one.split;
    recipe.train.steps = 6;
    const VerifyResult result = verify_beside_one_rank(recipe, one.stages * one.workers, 6);
    EXPECT_TRUE(result.equal) << one.schedule << ", " << one.split << ": " << result.gradients.name << " "
                              << result.gradients.relative << ", " << result.weights.name << " "
                              << result.weights.relative;
  }
}

/// A stage of several ranks: each has its part of the matrices, or of each sequence.
TEST(WavesOfTraining, OfStagesOnSeveralRanksEqualTheirSerialMathematics) {
  const spec::LayoutConfig layouts[] = {{.tp = 2, .pp = 2},
                                        {.tp = 4, .pp = 2},  // two ranks have each head of keys
                                        {.tp = 2, .pp = 2, .sequence_parallel = true},
                                        {.pp = 2, .cp = 2},
                                        {.pp = 2, .cp = 2, .cp_kind = spec::ContextKind::kUlysses},
                                        {.tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true}};
  for (const spec::LayoutConfig& layout : layouts) {
    for (const char* split : {"count", "size:3,1;size:1,3"}) {
      spec::Recipe recipe = in_waves(2, 2, 2, "hetpipe:1");
      recipe.model.num_heads = 4;
      recipe.model.num_kv_heads = 2;
      recipe.model.head_dim = 4;
      recipe.layout = layout;
      recipe.pipeline.split = split;
      recipe.train.steps = 5;
      const VerifyResult result = verify_beside_one_rank(recipe, 2 * static_cast<int>(layout.ranks_per_copy()), 5);
      EXPECT_TRUE(result.equal) << "tp " << layout.tp << ", cp " << layout.cp << ", " << split << ": "
                                << result.gradients.name << " " << result.gradients.relative << ", "
                                << result.weights.name << " " << result.weights.relative;
    }
  }
}

std::map<std::string, at::Tensor> weights_after(const spec::Recipe& recipe, int ranks, int steps) {
  std::map<std::string, at::Tensor> weights;
  std::mutex mutex;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank&) {
    for (int step = 0; step < steps; ++step) trainer.step();
    const std::lock_guard lock(mutex);
    for (const nn::Param& param : trainer.engine().params()) weights[param.name] = param.master.clone();
  });
  return weights;
}

TEST(WavesOfTraining, OfOneMinibatchWithoutDistanceAreSynchronousTrainingBitForBit) {
  spec::Recipe waves = in_waves(2, 2, 1, "hetpipe");
  waves.train.steps = 5;
  spec::Recipe synchronous = waves;
  synchronous.pipeline.schedule = "1f1b";
  const auto mine = weights_after(waves, 4, 5), theirs = weights_after(synchronous, 4, 5);
  ASSERT_EQ(mine.size(), theirs.size());
  for (const auto& [name, weight] : mine) EXPECT_TRUE(at::equal(weight, theirs.at(name))) << name;
  waves.pipeline.split = "layers.1;layers.3";
  const auto apart = weights_after(waves, 4, 5);
  ASSERT_EQ(apart.size(), theirs.size());
  for (const auto& [name, weight] : apart) EXPECT_TRUE(at::equal(weight, theirs.at(name))) << name << ", cut apart";
  waves.pipeline.split = "count";
  waves.pipeline.schedule = "hetpipe:1";
  const auto stale = weights_after(waves, 4, 5);
  EXPECT_FALSE(at::equal(stale.begin()->second, mine.begin()->second)) << "a distance changes what is computed";
}

TEST(WavesOfTraining, MeetTheBoundsOfThePaperAndPushOnceAWave) {
  spec::Recipe recipe = in_waves(2, 2, 4, "hetpipe:1");
  recipe.train.steps = recipe.pipeline.drain_every.emplace(8);
  with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank&) {
    for (int step = 0; step < 8; ++step) trainer.step();
    const auto met = dynamic_cast<MultiStepEngine&>(trainer.engine()).staleness();
    EXPECT_EQ(met.local, 3);
    EXPECT_EQ(met.global, 2 * 4 + 3 - 1);
    EXPECT_EQ(met.pushes, 8);
  });
}

TEST(WavesOfTraining, LowerTheLossOnStagesOfUnequalSpeed) {
  spec::Recipe recipe = in_waves(2, 2, 2, "hetpipe:1");
  recipe.pipeline.split = "size:3,1";
  recipe.train.steps = 40;
  double first = 0, last = 0;
  with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank& rank) {
    for (int step = 0; step < 40; ++step) {
      const StepReport report = trainer.step();
      if (rank.rank() == 0) (step == 0 ? first : last) = report.loss;
    }
  });
  EXPECT_LT(last, 0.9 * first);
}

}  // namespace
}  // namespace trireme::train
