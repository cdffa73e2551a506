// Compressed gradients and local updates in a trainer: every kind beside its serial twin, under several layouts; Adam
// before and after its variance is frozen; from a state to the bit.
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/train/support.h"

namespace trireme::train {
namespace {

using spec::CompressConfig, spec::CompressKind;

spec::Recipe compressed_recipe(const CompressConfig& config, int dp) {
  spec::Recipe recipe = small_recipe(spec::Family::kLlama, spec::Precision::kFp64);
  recipe.model.num_kv_heads = 2;
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.train.micro_batch_size = 1;
  recipe.layout.dp = dp;
  recipe.compress = config;
  if (!spec::has_local_updates(config.kind)) recipe.compress.min_elements = 300;
  return recipe;
}

struct TwinCase {
  const char* name;
  CompressConfig config;
};

std::vector<TwinCase> twin_cases() {
  return {
      {"1-bit SGD", {.kind = CompressKind::kOnebitSgd, .start = 1}},
      {"QSGD", {.kind = CompressKind::kQsgd}},
      {"QSGD, L2, Elias",
       {.kind = CompressKind::kQsgd, .norm = spec::QsgdNorm::kL2, .coding = spec::QsgdCoding::kElias}},
      {"PowerSGD", {.kind = CompressKind::kPowerSgd, .rank = 2}},
      {"PowerSGD, alternating", {.kind = CompressKind::kPowerSgd, .start = 1, .rank = 2, .alternate = true}},
      {"PowerSGD, cold", {.kind = CompressKind::kPowerSgd, .rank = 2, .warm_start = false}},
      {"DGC",
       {.kind = CompressKind::kDgc,
        .start = 2,
        .local_clip = true,
        .momentum = 0.9,
        .sparsity = 0.95,
        .sparsity_warmup = 4}},
      {"DGC, no momentum", {.kind = CompressKind::kDgc, .sparsity = 0.9}},
      {"CSC", {.kind = CompressKind::kCsc, .start = 1, .momentum = 0.9, .density = 0.3, .chunk = 100}},
      {"1-bit Adam", {.kind = CompressKind::kOnebitAdam, .freeze_after = 2}},
      {"0/1 Adam", {.kind = CompressKind::kZeroOneAdam, .variance_scale = 1, .local_scale = 2, .max_local_steps = 2}},
      {"local SGD", {.kind = CompressKind::kLocalSgd, .start = 1, .interval = 3}},
      {"local SGD with moments", {.kind = CompressKind::kLocalSgd, .interval = 3, .average_moments = true}},
      {"elastic averaging", {.kind = CompressKind::kElasticAveraging, .interval = 2}},
      {"DiLoCo", {.kind = CompressKind::kDiloco, .interval = 3}},
      {"DiLoCo, int8", {.kind = CompressKind::kDiloco, .interval = 3, .delta_dtype = spec::DeltaDtype::kInt8}},
      {"DiLoCo, fp16", {.kind = CompressKind::kDiloco, .interval = 3, .delta_dtype = spec::DeltaDtype::kFp16}},
      {"streaming DiLoCo", {.kind = CompressKind::kDiloco, .interval = 4, .fragments = 2, .delay = 1, .mixing = 0.5}},
  };
}

void expect_equal_to_twin(const spec::Recipe& recipe, int ranks, const std::string& where) {
  const VerifyResult result = verify_beside_one_rank(recipe, ranks, /*steps=*/9);
  EXPECT_TRUE(result.equal) << where << ": step " << result.first_step.value_or(0) << ", gradient of "
                            << result.gradients.first_parting << " (" << result.gradients.relative << "), weight "
                            << result.weights.first_parting << " (" << result.weights.relative << ")";
  ASSERT_TRUE(result.compressed.has_value()) << where;
  EXPECT_GE(result.compressed->rounds, 2) << where;
  EXPECT_GT(result.compressed->elements, 0) << where;
}

TEST(CompressionTwin, IsWhatDataParallelRanksCompute) {
  for (const TwinCase& one : twin_cases()) {
    spec::Recipe recipe = compressed_recipe(one.config, 3);
    if (one.config.local_clip) recipe.optim.grad_clip_norm = 0.5;
    expect_equal_to_twin(recipe, 3, one.name);
  }
}

/// Parts of matrices, stages, parts of sequences: each rank compresses what it holds, copies are those of dp. One
/// layout a method, in turn.
TEST(CompressionTwin, IsWhatOtherLayoutsCompute) {
  int turn = 0;
  for (const TwinCase& one : twin_cases()) {
    CompressConfig config = one.config;
    config.local_clip = false;
    spec::Recipe recipe = compressed_recipe(config, 2);
    int& axis = turn % 3 == 0 ? recipe.layout.tp : turn % 3 == 1 ? recipe.layout.cp : recipe.layout.pp;
    axis = 2;
    expect_equal_to_twin(recipe, 4,
                         std::string(one.name) + (turn % 3 == 0   ? " with tp"
                                                  : turn % 3 == 1 ? " with cp"
                                                                  : " with pp"));
    ++turn;
  }
}

/// Dense inside a node or a worker, compressed or rare across.
TEST(CompressionTwin, IsWhatTwoLevelsCompute) {
  spec::Recipe nodes =
      compressed_recipe({.kind = CompressKind::kPowerSgd, .across = spec::CompressAcross::kNode, .rank = 2}, 4);
  nodes.comm.ranks_per_node = 2;
  expect_equal_to_twin(nodes, 4, "across nodes");
  expect_equal_to_twin(compressed_recipe({.kind = CompressKind::kDiloco, .interval = 3, .workers = 2}, 4), 4,
                       "two workers");
}

TEST(CompressionTwin, IsWhatZero1Computes) {
  spec::Recipe recipe = compressed_recipe({.kind = CompressKind::kPowerSgd, .rank = 2}, 2);
  recipe.layout.zero = 1;
  expect_equal_to_twin(recipe, 2, "ZeRO-1");
}

/// Norms of which every tensor-parallel rank has a part of the gradient: 1-bit Adam's momentum counts once.
TEST(CompressionTwin, IsWhatSequenceParallelRanksCompute) {
  for (const TwinCase& one : twin_cases()) {
    if (one.config.kind != CompressKind::kOnebitAdam && one.config.kind != CompressKind::kPowerSgd) continue;
    spec::Recipe recipe = compressed_recipe(one.config, 2);
    recipe.layout.tp = 2;
    recipe.layout.sequence_parallel = true;
    expect_equal_to_twin(recipe, 4, std::string(one.name) + " with sequence parallelism");
  }
}

/// Experts have fewer copies than dense parameters, or none: with ep = 2 two of them on four ranks, with ep = 4 one.
/// Local updates are those of workers that hold all experts.
TEST(CompressionTwin, IsWhatExpertParallelRanksCompute) {
  for (const TwinCase& one : twin_cases()) {
    if (one.config.kind == CompressKind::kZeroOneAdam) continue;  // refused: every rank steps by itself
    CompressConfig config = one.config;
    config.local_clip = false;
    spec::Recipe recipe = compressed_recipe(config, 4);
    recipe.model.family = spec::Family::kMistral;
    recipe.model.experts = {.num_experts = 4,
                            .top_k = 2,
                            .ffn_size = 16,
                            .router = spec::RouterKind::kSigmoidTopK,
                            .aux_loss_weight = 0.02,
                            .bias_update_rate = 0.01};
    recipe.layout.ep = 2;
    if (spec::has_local_updates(config.kind)) recipe.compress.workers = 2;
    expect_equal_to_twin(recipe, 4, std::string(one.name) + " with ep");
    if (config.kind != CompressKind::kPowerSgd && config.kind != CompressKind::kOnebitAdam) continue;
    recipe.layout.ep = 4;
    expect_equal_to_twin(recipe, 4, std::string(one.name) + " with experts of one copy");
    recipe.layout.dp = 2;
    recipe.layout.cp = 2;
    expect_equal_to_twin(recipe, 4, std::string(one.name) + " with ep over dp and cp");
  }
}

/// What compresses nothing is not called equal.
TEST(CompressionTwin, MustHaveSomethingToCompare) {
  spec::Recipe recipe = compressed_recipe({.kind = CompressKind::kPowerSgd}, 2);
  recipe.compress.min_elements = 1'000'000;
  EXPECT_FALSE(verify_beside_one_rank(recipe, 2, 2).equal);
}

std::map<std::string, at::Tensor> state_after(const spec::Recipe& recipe, int ranks, std::int64_t steps) {
  std::map<std::string, at::Tensor> tensors;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    for (std::int64_t step = 0; step < steps; ++step) trainer.step();
    if (rank.rank() != 0) return;
    for (const nn::StateTensor& entry : trainer.state().tensors()) tensors[entry.name] = entry.tensor.clone();
  });
  return tensors;
}

TEST(OnebitAdam, IsAdamUntilItFreezesTheVariance) {
  const spec::Recipe onebit = compressed_recipe({.kind = CompressKind::kOnebitAdam, .freeze_after = 3}, 2);
  spec::Recipe adam = onebit;
  adam.compress = {};
  const auto before = state_after(onebit, 2, 3), plain = state_after(adam, 2, 3), after = state_after(onebit, 2, 5);
  int variances = 0;
  for (const auto& [name, tensor] : plain) EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
  for (const auto& [name, tensor] : before) {
    if (!name.starts_with("optim/v/")) continue;
    EXPECT_TRUE(at::equal(tensor, after.at(name))) << name;
    ++variances;
  }
  EXPECT_GT(variances, 4);
  EXPECT_FALSE(at::equal(before.at("optim/m/head.weight"), after.at("optim/m/head.weight")));
}

/// Rows of the embedding that no token has met have no variance, and stay as they were drawn.
TEST(OnebitAdam, LeavesRowsWithoutVarianceAlone) {
  spec::Recipe recipe = compressed_recipe({.kind = CompressKind::kOnebitAdam, .freeze_after = 1}, 2);
  recipe.model.tied = false;
  const auto first = state_after(recipe, 2, 1), last = state_after(recipe, 2, 6);
  const at::Tensor variance = first.at("optim/v/embedding.tokens.weight"), still = variance.eq(0);
  ASSERT_GT(still.sum().item<std::int64_t>(), 0);
  ASSERT_GT(variance.ne(0).sum().item<std::int64_t>(), 0);
  EXPECT_TRUE(at::equal(first.at("param/embedding.tokens.weight").masked_select(still),
                        last.at("param/embedding.tokens.weight").masked_select(still)));
}

/// theta' - (theta' - theta) is theta to rounding: a pseudo-gradient of the wrong sign would show.
TEST(Diloco, OfOneWorkerAndStepIsAdamW) {
  const spec::Recipe diloco = compressed_recipe({.kind = CompressKind::kDiloco,
                                                 .interval = 1,
                                                 .outer_learning_rate = 1,
                                                 .outer_momentum = 0,
                                                 .outer_nesterov = false},
                                                1);
  spec::Recipe plain = diloco;
  plain.compress = {};
  const auto one = state_after(diloco, 1, 5), two = state_after(plain, 1, 5);
  for (const auto& [name, tensor] : two) {
    if (name.starts_with("param/")) {
      EXPECT_LT(tensor.sub(one.at(name)).abs().max().item<double>(), 1e-14) << name;
    }
  }
}

/// Every kind goes on from its state to the bit, wherever it was: residuals, momenta, weights and moments of each copy.
TEST(Compression, GoesOnFromItsStateToTheBit) {
  for (const TwinCase& one : twin_cases()) {
    const spec::Recipe recipe = compressed_recipe(one.config, 2);
    comm::run_ranks(2, [&](comm::Rank& rank) {
      const auto first = data::open_samples(recipe, data::Split::kTrain);
      const auto second = data::open_samples(recipe, data::Split::kTrain);
      Trainer through(recipe, model_shape(recipe), rank.world(), *first);
      Trainer resumed(recipe, model_shape(recipe), rank.world(), *second);
      for (int step = 0; step < 4; ++step) through.step();
      nn::State& to = resumed.state();
      for (const nn::StateTensor& entry : to.tensors())
        at::Tensor(entry.tensor).copy_(through.state().at(entry.name).tensor);
      for (const nn::StateValue& entry : to.values()) entry.set(through.state().value(entry.name).get());
      resumed.loaded();
      for (int step = 0; step < 4; ++step) {
        EXPECT_EQ(through.step().loss, resumed.step().loss) << one.name << " " << step;
      }
      for (const nn::StateTensor& entry : to.tensors())
        EXPECT_TRUE(at::equal(entry.tensor, through.state().at(entry.name).tensor)) << one.name << " " << entry.name;
    });
  }
}

}  // namespace
}  // namespace trireme::train
