// Compressed gradients and local updates in a trainer: every kind beside its serial twin, under several layouts; Adam
// before and after its variance is frozen; from a state to the bit.
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/train/support.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/checkpoint/store.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/formats/checkpoint_folder.h"

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
  if (config.kind != CompressKind::kNone && !spec::has_local_updates(config.kind)) recipe.compress.min_elements = 300;
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
    spec::Recipe recipe = compressed_recipe(one.config, 2);
    if (one.config.local_clip) recipe.optim.grad_clip_norm = 0.5;
    int& axis = turn % 3 == 0 ? recipe.layout.tp : turn % 3 == 1 ? recipe.layout.cp : recipe.layout.pp;
    axis = 2;
    expect_equal_to_twin(recipe, 4,
                         std::string(one.name) + (turn % 3 == 0   ? " with tp"
                                                  : turn % 3 == 1 ? " with cp"
                                                                  : " with pp"));
    ++turn;
  }
}

/// A copy's norm is that of all its ranks, each number once: parts of matrices, norms that all of them hold, norms that
/// each has a part of the gradient of (sequence parallelism), stages.
TEST(CompressionTwin, ClipsCopiesOfSeveralRanks) {
  for (const char* layout : {"tp", "sequence parallelism", "pp", "cp"}) {
    const std::string name = layout;
    spec::Recipe recipe = compressed_recipe({.kind = CompressKind::kOnebitSgd, .local_clip = true}, 2);
    recipe.optim.grad_clip_norm = 0.2;
    if (name == "tp" || name == "sequence parallelism") recipe.layout.tp = 2;
    if (name == "pp") recipe.layout.pp = 2;
    if (name == "cp") recipe.layout.cp = 2;
    recipe.layout.sequence_parallel = name == "sequence parallelism";
    recipe.model.tied = name == "pp";
    expect_equal_to_twin(recipe, 4, "local clip with " + name);
  }
}

/// What several stages hold (a tied embedding; with bidirectional schedules every chunk) is summed over them first, and
/// each then compresses the same with the same draws.
TEST(CompressionTwin, IsWhatStagesThatShareParametersCompute) {
  for (const TwinCase& one : twin_cases()) {
    spec::Recipe recipe = compressed_recipe(one.config, 2);
    if (one.config.local_clip) recipe.optim.grad_clip_norm = 0.5;
    recipe.layout.pp = 2;
    recipe.model.tied = true;
    if (one.config.kind != CompressKind::kCsc)  // refused: stages would choose different chunks
      expect_equal_to_twin(recipe, 4, std::string(one.name) + " with a tied embedding on two stages");
    recipe.model.tied = false;
    recipe.pipeline.schedule = "chimera";
    expect_equal_to_twin(recipe, 4, std::string(one.name) + " with chimera");
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

/// With the optimizer on the host, updates at once and one step late: what is compressed, and what is kept, is the
/// same.
TEST(CompressionTwin, IsWhatOffloadComputes) {
  int turn = 0;
  for (const TwinCase& one : twin_cases()) {
    const CompressKind kind = one.config.kind;
    if (spec::lets_copies_drift(kind) || kind == CompressKind::kOnebitAdam) continue;  // refused: they are on the host
    spec::Recipe recipe = compressed_recipe(one.config, 2);
    if (one.config.local_clip) recipe.optim.grad_clip_norm = 0.5;
    recipe.layout.offload = spec::OffloadKind::kOptimizer;
    recipe.layout.zero = turn % 2;
    recipe.layout.delayed_update = turn % 3 != 0;
    if (recipe.layout.delayed_update) recipe.layout.offload_warmup = 2;
    expect_equal_to_twin(recipe, 2,
                         fmt::format("{} with offload, ZeRO-{}{}", one.name, recipe.layout.zero,
                                     recipe.layout.delayed_update ? ", late updates" : ""));
    ++turn;
  }
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

/// Four copies' checkpoint read by three, or by five: what was left out is shared out among them and its sum stays; the
/// run goes on. A worker that leaves takes its moments with it; one that joins begins with the first one's weights.
TEST(Compression, ACheckpointIsReadByAnotherNumberOfCopies) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / fmt::format("copies-{}", ::getpid());
  for (const TwinCase& one : twin_cases()) {
    std::filesystem::remove_all(folder);
    spec::Recipe recipe = compressed_recipe(one.config, 4);
    recipe.batch.global_batch_tokens = 60 * 12;  // for 3, 4 and 5 copies alike
    using Residuals = std::map<std::string, at::Tensor>;
    const auto residuals_of = [](Trainer& trainer, comm::Rank& rank) {
      Residuals residuals;
      for (const nn::StateTensor& entry : trainer.state().tensors()) {
        if (!entry.name.starts_with("reduce/residual/")) continue;
        residuals[entry.name] = entry.tensor.to(at::kDouble).clone();
        rank.world().all_reduce(device::to_buffer(residuals[entry.name]), comm::Reduce::kSum).wait();
      }
      return residuals;
    };
    Residuals before;
    with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank& rank) {
      for (int step = 0; step < 5; ++step) trainer.step();
      EXPECT_EQ(checkpoint::Saver(trainer.state(), rank.world(), {}).save({.folder = folder, .step = 5})->why, "");
      const Residuals mine = residuals_of(trainer, rank);
      if (rank.rank() == 0) before = mine;
    });
    const bool keeps = one.config.kind != CompressKind::kQsgd && !spec::has_local_updates(one.config.kind);
    EXPECT_EQ(before.empty(), !keeps && one.config.delta_dtype == spec::DeltaDtype::kFp32) << one.name;
    for (const int copies : {3, 5}) {
      recipe.layout.dp = copies;
      with_trainers(recipe, copies, [&](Trainer& trainer, comm::Rank& rank) {
        checkpoint::load(formats::CheckpointFolder(folder / formats::checkpoint_name(5)), trainer.state());
        trainer.loaded();
        const Residuals now = residuals_of(trainer, rank);
        ASSERT_EQ(now.size(), before.size()) << one.name;
        for (const auto& [name, sum] : before)
          EXPECT_LT(sum.sub(now.at(name)).abs().max().item<double>(), 1e-6 * (1 + sum.abs().max().item<double>()))
              << one.name << " " << name << " 4 -> " << copies;
        for (int step = 0; step < 3; ++step)
          EXPECT_TRUE(std::isfinite(trainer.step().loss)) << one.name << " 4 -> " << copies;
      });
    }
  }
  std::filesystem::remove_all(folder);
}

/// Streaming DiLoCo: with two fragments no step sends more than about half of what a round of all sends.
TEST(StreamingDiloco, LowersThePeakOfBytes) {
  const auto peak = [](int fragments) {
    spec::Recipe recipe = compressed_recipe({.kind = CompressKind::kDiloco, .interval = 4, .fragments = fragments}, 2);
    recipe.model.tied = false;
    double most = 0, sum = 0;
    with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
      double before = 0;
      for (int step = 0; step < 8; ++step) {
        trainer.step();
        const double sent = trainer.engine().data_parallel().reducer().report()->sent_bytes;
        if (rank.rank() == 0) most = std::max(most, sent - before), sum += sent - before;
        before = sent;
      }
    });
    return std::pair(most, sum);
  };
  const auto [whole, whole_sum] = peak(1);
  const auto [half, half_sum] = peak(2);
  EXPECT_GT(whole, 0);
  EXPECT_EQ(whole_sum, half_sum);
  EXPECT_LT(half, 0.55 * whole);
}

/// Stages that update by themselves compress their gradients by themselves. Where nothing is left out (all chunks, all
/// elements) they are those of dense sums; and what leaves something out goes on from its state to the bit.
TEST(Compression, OfAsynchronousStagesIsThatOfEachStage) {
  for (const char* schedule : {"pipedream", "pipedream-2bw"}) {
    spec::Recipe dense = compressed_recipe({}, 2);
    dense.model.tied = false;
    dense.layout.pp = 2;
    dense.pipeline.schedule = schedule;
    dense.batch.global_batch_tokens = 16 * 12;
    const auto expected = state_after(dense, 4, 4);
    for (const CompressConfig& config : std::vector<CompressConfig>{
             {.kind = CompressKind::kCsc, .density = 1, .chunk = 100}, {.kind = CompressKind::kDgc, .sparsity = 0}}) {
      spec::Recipe recipe = dense;
      recipe.compress = config;
      recipe.compress.min_elements = 300;
      const auto found = state_after(recipe, 4, 4);
      for (const auto& [name, tensor] : expected) {
        if (name.starts_with("param/")) {
          EXPECT_LT(tensor.sub(found.at(name)).abs().max().item<double>(), 1e-12) << name;
        }
      }
    }
    spec::Recipe lossy = dense;
    lossy.compress = {.kind = CompressKind::kOnebitSgd, .min_elements = 300};
    const auto found = state_after(lossy, 4, 4);
    EXPECT_GT(found.at("reduce/residual/layers.0.mlp.in.weight").abs().max().item<double>(), 0);
    EXPECT_FALSE(at::equal(found.at("param/layers.0.mlp.in.weight"), expected.at("param/layers.0.mlp.in.weight")));
  }
}

/// fp16: a step whose gradients overflow on some copy leaves residuals as they were, the scale falls, and training goes
/// on; copies that step by themselves skip the same steps and have one scale.
TEST(Compression, TrainsWithALossScale) {
  for (const TwinCase& one : twin_cases()) {
    spec::Recipe recipe = compressed_recipe(one.config, 2);
    recipe.precision.compute = spec::Precision::kFp16;
    recipe.precision.loss_scale.initial = 16777216.0;  // too large: the first steps overflow
    recipe.compress.local_clip = false;
    std::mutex mutex;
    std::map<int, std::vector<double>> losses;
    std::map<int, std::vector<bool>> taken;
    std::map<int, std::string> scales;
    with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
      std::vector<double> mine;
      std::vector<bool> my_steps;
      for (int step = 0; step < 12; ++step) {
        const StepReport report = trainer.step();
        my_steps.push_back(report.taken);
        mine.push_back(report.loss);
      }
      EXPECT_TRUE(std::ranges::find(my_steps, true) != my_steps.end()) << one.name;
      EXPECT_FALSE(my_steps.front()) << one.name;
      for (const nn::StateTensor& entry : trainer.state().tensors())
        EXPECT_TRUE(std::isfinite(entry.tensor.to(at::kDouble).sum().item<double>())) << one.name << " " << entry.name;
      const std::lock_guard lock(mutex);
      losses[rank.rank()] = mine;
      taken[rank.rank()] = my_steps;
      scales[rank.rank()] = trainer.state().value("loss_scale").get().dump();
    });
    EXPECT_EQ(losses[0], losses[1]) << one.name;
    EXPECT_EQ(taken[0], taken[1]) << one.name;
    EXPECT_EQ(scales[0], scales[1]) << one.name;
    EXPECT_LT(losses[0].back(), losses[0].front()) << one.name;
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
