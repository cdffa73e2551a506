// bf16 weights without masters, and bf16 moments: less memory, the same training but for rounding.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "tests/train/support.h"
#include "trireme/checkpoint/store.h"
#include "trireme/formats/checkpoint_folder.h"

namespace trireme::train {
namespace {

using spec::Family;
using spec::Precision;

spec::Recipe recipe_for(int zero) {
  spec::Recipe recipe = small_recipe(Family::kLlama, Precision::kBf16);
  recipe.batch.global_batch_tokens = 6 * 12;
  recipe.train.micro_batch_size = 3;
  recipe.layout.zero = zero;
  recipe.layout.bucket_mb = 0.002;  // several buckets, of both types
  return recipe;
}

std::vector<double> losses_of(const spec::Recipe& recipe, int ranks, int steps) {
  std::vector<double> losses;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    for (int step = 0; step < steps; ++step) {
      const double loss = trainer.step().loss;
      if (rank.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

/// Matrices of layers without masters, or tables too.
class NarrowStates : public testing::TestWithParam<spec::MasterWeights> {
 protected:
  static spec::Recipe narrow(spec::Recipe recipe) {
    recipe.precision.master_weights = GetParam();
    recipe.optim.state_dtype = spec::StateDtype::kBf16;
    return recipe;
  }
};

TEST_P(NarrowStates, LearnAsWideOnesDo) {
  spec::Recipe recipe = recipe_for(0);
  recipe.optim.learning_rate = 3e-3;
  const std::vector<double> wide = losses_of(recipe, 1, 60), few = losses_of(narrow(recipe), 1, 60);
  EXPECT_LT(wide.back(), wide.front() - 0.3);
  for (std::size_t i = 0; i < wide.size(); ++i) EXPECT_NEAR(few[i], wide[i], 0.03 * wide[i]) << i;
}

TEST_P(NarrowStates, GoWithEveryZeroAndOffload) {
  for (const int zero : {0, 1, 2, 3}) {
    for (const bool offload : {false, true}) {
      SCOPED_TRACE(fmt::format("zero {}, offload {}", zero, offload));
      spec::Recipe recipe = narrow(recipe_for(zero));
      if (offload) recipe.layout.offload = spec::OffloadKind::kOptimizer;
      const std::vector<double> one = losses_of(narrow(recipe_for(0)), 1, 5), shared = losses_of(recipe, 2, 5);
      for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(shared[i], one[i], 0.01 * one[i]) << i;
    }
  }
}

/// A rank's part of a parameter rounds as the whole one does, and one rank's ZeRO changes nothing at all.
TEST_P(NarrowStates, AreTheSameBitsUnderZeroAndOffloadOfOneRank) {
  const std::vector<double> plain = losses_of(narrow(recipe_for(0)), 1, 6);
  for (const int zero : {1, 2}) {
    spec::Recipe recipe = narrow(recipe_for(zero));
    recipe.train.micro_batch_size = 6;
    spec::Recipe whole = narrow(recipe_for(0));
    whole.train.micro_batch_size = 6;
    EXPECT_EQ(losses_of(recipe, 1, 6), losses_of(whole, 1, 6)) << zero;
  }
  spec::Recipe recipe = narrow(recipe_for(0));
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  EXPECT_EQ(losses_of(recipe, 1, 6), plain);
}

/// Stochastic rounding draws by a weight's name and index, whichever stage holds it.
TEST_P(NarrowStates, StagesEqualOneRank) {
  const auto expect_equal = [](const spec::Recipe& recipe, int ranks, const char* what) {
    const VerifyResult result = verify_beside_one_rank(recipe, ranks, 4);
    EXPECT_TRUE(result.equal) << what << ": " << result.gradients.name << " " << result.gradients.relative << ", "
                              << result.weights.name << " " << result.weights.relative;
  };
  spec::Recipe recipe = narrow(recipe_for(0));
  recipe.model.num_layers = 4;
  recipe.model.tied = false;
  recipe.train.micro_batch_size = 1;
  recipe.train.steps = 4;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  recipe.layout.pp = 2;
  for (const char* kind : {"1f1b", "zb-v", "pipedream-2bw", "xpipe"}) {
    recipe.pipeline.schedule = kind;
    expect_equal(recipe, 2, kind);
  }
  recipe.pipeline = {.schedule = "zb-h2", .drain_every = 2};  // updates are taken back
  expect_equal(recipe, 2, "steps validated after the fact");
  recipe.pipeline = {};
  for (const int zero : {1, 2, 3}) {
    recipe.layout.zero = zero;
    expect_equal(recipe, 4, "ZeRO");
  }
}

TEST_P(NarrowStates, TakeLessMemory) {
  const device::RankMemory wide = memory_after_a_step(recipe_for(0)), few = memory_after_a_step(narrow(recipe_for(0)));
  EXPECT_LT(few.device.peak_of(device::MemoryUse::kGradients), wide.device.peak_of(device::MemoryUse::kGradients));
  EXPECT_LT(2 * few.device.peak_of(device::MemoryUse::kOptimizer),
            wide.device.peak_of(device::MemoryUse::kOptimizer) + 1000);
}

TEST_P(NarrowStates, GoOnFromACheckpointToTheBit) {
  const auto folder = std::filesystem::temp_directory_path() /
                      fmt::format("trireme-narrow-{}-{}", getpid(), static_cast<int>(GetParam()));
  const spec::Recipe recipe = narrow(recipe_for(0));
  std::vector<double> straight, again;
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    for (int step = 0; step < 6; ++step) {
      if (step == 3) checkpoint::save(trainer.state(), {.folder = folder, .name = "state", .step = 3});
      straight.push_back(trainer.step().loss);
    }
  });
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    checkpoint::load(formats::CheckpointFolder(folder / "state"), trainer.state());
    trainer.loaded();
    for (int step = 3; step < 6; ++step) again.push_back(trainer.step().loss);
  });
  std::filesystem::remove_all(folder);
  EXPECT_EQ(again, std::vector<double>(straight.begin() + 3, straight.end()));
}

TEST(NarrowTables, AreOfTheComputeTypeToo) {
  spec::Recipe recipe = recipe_for(0);
  recipe.precision.master_weights = spec::MasterWeights::kVectors;
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    trainer.step();
    for (const nn::Param& param : trainer.params()) {
      const auto type = param.placement.shape.size() == 2 ? at::kBFloat16 : at::kFloat;
      EXPECT_EQ(param.master.scalar_type(), type) << param.name;
      EXPECT_EQ(param.gradient.scalar_type(), type) << param.name;
    }
  });
}

/// Every other optimizer rounds its new weights by the same chances; what it keeps for them is fp32.
class NarrowWeights : public testing::TestWithParam<spec::OptimizerKind> {
 protected:
  static spec::Recipe wide(int zero) {
    spec::Recipe recipe = recipe_for(zero);
    recipe.optim = {.kind = GetParam(), .learning_rate = 3e-3, .weight_decay = 0.01, .grad_clip_norm = 1};
    switch (GetParam()) {
      case spec::OptimizerKind::kSgd:
        recipe.optim.learning_rate = 0.1;
        break;
      case spec::OptimizerKind::kLars:
        recipe.optim.learning_rate = 1;
        recipe.optim.trust = 0.02;
        break;
      case spec::OptimizerKind::kAdagrad:
      case spec::OptimizerKind::kLamb:
      case spec::OptimizerKind::kAdafactor:
        recipe.optim.learning_rate = 0.02;
        break;
      case spec::OptimizerKind::kLion:
        recipe.optim.learning_rate = 1e-3;
        break;
      default:
        break;
    }
    return recipe;
  }
  static spec::Recipe narrow(int zero) {
    spec::Recipe recipe = wide(zero);
    recipe.precision.master_weights = spec::MasterWeights::kVectors;
    return recipe;
  }
};

TEST_P(NarrowWeights, LearnAsWideOnesDo) {
  const std::vector<double> full = losses_of(wide(0), 1, 60), few = losses_of(narrow(0), 1, 60);
  EXPECT_LT(full.back(), full.front() - 0.2);
  for (std::size_t i = 0; i < full.size(); ++i) EXPECT_NEAR(few[i], full[i], 0.04 * full[i]) << i;
}

TEST_P(NarrowWeights, GoWithEveryZeroAndOffload) {
  const std::vector<double> one = losses_of(narrow(0), 1, 5);
  for (const int zero : {0, 1, 2, 3}) {
    for (const bool offload : {false, true}) {
      SCOPED_TRACE(fmt::format("zero {}, offload {}", zero, offload));
      spec::Recipe recipe = narrow(zero);
      if (offload) recipe.layout.offload = spec::OffloadKind::kOptimizer;
      const std::vector<double> shared = losses_of(recipe, 2, 5);
      for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(shared[i], one[i], 0.01 * one[i]) << i;
    }
  }
}

TEST_P(NarrowWeights, KeepNoMastersOfMatrices) {
  with_trainers(narrow(0), 1, [&](Trainer& trainer, comm::Rank&) {
    trainer.step();
    for (const nn::Param& param : trainer.params()) {
      const auto type = param.placement.shape.size() == 2 ? at::kBFloat16 : at::kFloat;
      EXPECT_EQ(param.master.scalar_type(), type) << param.name;
    }
    for (const nn::StateTensor& entry : trainer.state().tensors()) {
      if (!entry.name.starts_with("optim/")) continue;
      EXPECT_EQ(entry.tensor.scalar_type(), at::kFloat) << entry.name;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Optimizers, NarrowWeights,
                         testing::Values(spec::OptimizerKind::kSgd, spec::OptimizerKind::kAdagrad,
                                         spec::OptimizerKind::kLamb, spec::OptimizerKind::kLars,
                                         spec::OptimizerKind::kLion, spec::OptimizerKind::kScheduleFree,
                                         spec::OptimizerKind::kMuon, spec::OptimizerKind::kAdafactor,
                                         spec::OptimizerKind::kShampoo, spec::OptimizerKind::kSoap),
                         [](const auto& test) {
                           std::string name(
                               name_in(spec::enum_names(std::type_identity<spec::OptimizerKind>()), test.param));
                           std::erase(name, '-');
                           return name;
                         });

INSTANTIATE_TEST_SUITE_P(MasterWeights, NarrowStates,
                         testing::Values(spec::MasterWeights::kNone, spec::MasterWeights::kVectors),
                         [](const auto& test) {
                           return std::string(test.param == spec::MasterWeights::kNone ? "OfLayers" : "OfTablesToo");
                         });

}  // namespace
}  // namespace trireme::train
