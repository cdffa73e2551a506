// Optimizers of whole matrices, averages of weights, the gradient noise scale and layer dropping on several ranks
// beside one.
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/train/support.h"
#include "trireme/checkpoint/gather.h"
#include "trireme/nn/layer_drop.h"
#include "trireme/plan/layout_matrix.h"
#include "trireme/plan/run_setup.h"
#include "trireme/schedule/builders.h"
#include "trireme/train/diagnose/verify.h"
#include "trireme/train/engine/layer_dropping.h"

namespace trireme::train {
namespace {

using spec::OptimizerKind;

spec::Recipe optim_recipe(OptimizerKind kind) {
  spec::Recipe recipe = small_recipe(spec::Family::kLlama, spec::Precision::kFp64);
  recipe.model.num_heads = 4;
  recipe.model.num_kv_heads = 2;
  recipe.model.head_dim = 4;
  recipe.optim = {.kind = kind, .learning_rate = 1e-3, .weight_decay = 0.1, .grad_clip_norm = 1};
  if (kind == OptimizerKind::kShampoo || kind == OptimizerKind::kSoap) recipe.optim.precondition_every = 2;
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.train.micro_batch_size = 2;
  return recipe;
}

std::vector<std::string> layouts_that_differ(const spec::Recipe& recipe, const std::vector<std::string>& layouts,
                                             std::int64_t steps = 3) {
  VerifyRequest request{.recipes = {}, .reference = recipe, .steps = steps};
  spec::undistribute(request.reference);
  for (const std::string& text : layouts) {
    const plan::LayoutCase layout = plan::parse_layout(text);
    request.recipes.push_back(recipe);
    request.recipes.back().layout = layout.layout;
    request.recipes.back().pipeline = layout.pipeline;
  }
  std::vector<std::string> wrong;
  comm::run_ranks(4, [&](comm::Rank& rank) {
    verify(request, rank, [&](std::size_t i, const VerifyResult& result) {
      if (rank.rank() != 0 || result.equal) return;
      wrong.push_back(layouts[i] + ": " + result.gradients.name + " " + std::to_string(result.gradients.relative) +
                      ", " + result.weights.name + " " + std::to_string(result.weights.relative));
    });
  });
  return wrong;
}

/// Without SOAP: a product of rank below its size has no one eigenbasis, so rounding decides on its steps.
class LayoutsOfOptimizers : public testing::TestWithParam<OptimizerKind> {};
INSTANTIATE_TEST_SUITE_P(All, LayoutsOfOptimizers,
                         testing::Values(OptimizerKind::kMuon, OptimizerKind::kAdafactor, OptimizerKind::kShampoo,
                                         OptimizerKind::kLion, OptimizerKind::kScheduleFree),
                         [](const auto& given) {
                           std::string name(
                               name_in(spec::enum_names(std::type_identity<OptimizerKind>()), given.param));
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(LayoutsOfOptimizers, EqualOneRank) {
  std::vector<std::string> layouts = {"", "zero=1", "zero=2", "zero=3", "tp=4", "tp=2 sp zero=1", "tp=2 zero=3"};
  layouts.emplace_back("pp=2 tp=2");  // llama's head is not tied
  EXPECT_THAT(layouts_that_differ(optim_recipe(GetParam()), layouts), testing::IsEmpty());
}

/// Two stages hold a tied embedding, which Adafactor factors too; every parameter may be looked for.
TEST_P(LayoutsOfOptimizers, EqualOneRankWithTiedEmbeddingsAndFindUnused) {
  spec::Recipe recipe = optim_recipe(GetParam());
  recipe.model.tied = true;
  EXPECT_THAT(layouts_that_differ(recipe, {"pp=2 tp=2", "pp=2 zero=1", "pp=4", "pp=2 zero=3"}), testing::IsEmpty());
  for (const int zero : {0, 1, 3}) {
    recipe.layout = {.zero = zero, .find_unused = true};
    EXPECT_TRUE(verify_beside_one_rank(recipe, 2, 3).equal) << zero;
  }
}

TEST_P(LayoutsOfOptimizers, KeepTheStateOfATiedEmbeddingOnce) {
  spec::Recipe recipe = optim_recipe(GetParam());
  recipe.model.tied = true;
  recipe.layout.pp = 2;
  std::map<std::string, std::int64_t> kept, whole;
  std::mutex lock;
  with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
    trainer.step();
    const nn::State all = checkpoint::gather_whole(trainer.state(), rank.world());
    const std::lock_guard guard(lock);
    for (const nn::StateTensor& entry : all.tensors()) kept[entry.name] = entry.tensor.numel();
  });
  recipe.layout = {};
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    trainer.step();
    for (const nn::StateTensor& entry : trainer.state().tensors()) whole[entry.name] = entry.tensor.numel();
  });
  EXPECT_EQ(kept, whole);
}

/// What a checkpoint holds: each element of each tensor on one rank as the first copy, whoever owns matrices.
TEST_P(LayoutsOfOptimizers, KeepEachElementOfTheStateOnce) {
  for (const int zero : {0, 1, 3}) {
    spec::Recipe recipe = optim_recipe(GetParam());
    recipe.layout.zero = zero;
    std::map<std::string, std::int64_t> kept, whole;
    std::mutex lock;
    with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
      trainer.step();
      for (const nn::StateTensor& entry : trainer.state().tensors()) {
        const std::lock_guard guard(lock);
        whole[entry.name] = layout::elements(entry.placement.shape);
        for (const layout::ContiguousRun& run : layout::first_copy_runs(trainer.mesh(), rank.rank(), entry.placement))
          kept[entry.name] += run.count;
      }
    });
    EXPECT_EQ(kept, whole) << zero;
  }
}

// --- averages of weights

/// The validation loss with the weights that `replace` gives for each parameter of a single rank's trainer.
double loss_with(Trainer& trainer, const data::Samples& samples, const std::function<at::Tensor(nn::Param&)>& replace) {
  std::vector<at::Tensor> kept;
  for (nn::Param& param : trainer.params()) {
    kept.push_back(param.master.clone());
    param.master.copy_(replace(param));
    nn::publish(param);
  }
  const double loss = trainer.engine().evaluate(samples, {.count = 4}).loss();
  std::size_t i = 0;
  for (nn::Param& param : trainer.params()) {
    param.master.copy_(kept[i++]);
    nn::publish(param);
  }
  return loss;
}

TEST(EvaluationWeights, AreTheAverageAndLeaveTheTrainedOnes) {
  for (const bool ema : {false, true}) {
    spec::Recipe recipe = optim_recipe(ema ? OptimizerKind::kAdamw : OptimizerKind::kScheduleFree);
    recipe.optim.learning_rate = 0.05;
    if (ema) {
      recipe.optim.ema_decay = 0.5;
      recipe.eval.weights = spec::EvalWeights::kEma;
    }
    double alone = 0;
    with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
      std::map<std::string, at::Tensor> average;  // by hand
      for (nn::Param& param : trainer.params()) average[param.name] = param.master.clone();
      for (int step = 0; step < 4; ++step) {
        trainer.step();
        for (nn::Param& param : trainer.params()) average[param.name].lerp_(param.master, 0.5);
      }
      const auto samples = data::open_samples(recipe, data::Split::kTrain);
      std::map<std::string, at::Tensor> before;
      for (nn::Param& param : trainer.params()) before[param.name] = param.master.clone();
      alone = trainer.evaluate(*samples, {.count = 4}).loss();
      for (nn::Param& param : trainer.params()) EXPECT_TRUE(at::equal(param.master, before[param.name])) << param.name;
      const double by_hand = loss_with(trainer, *samples, [&](nn::Param& param) {
        return ema ? average[param.name] : trainer.optimizer().evaluation_weights(param);
      });
      EXPECT_NEAR(alone, by_hand, 1e-12);
      EXPECT_GT(std::abs(alone - trainer.engine().evaluate(*samples, {.count = 4}).loss()), 1e-4)
          << "the trained weights have another loss";
      EXPECT_EQ(trainer.state().find("ema/norm.weight") != nullptr, ema);
    });
    for (const int zero : {1, 3}) {
      recipe.layout.zero = zero;
      with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank&) {
        for (int step = 0; step < 4; ++step) trainer.step();
        const auto samples = data::open_samples(recipe, data::Split::kTrain);
        EXPECT_NEAR(trainer.evaluate(*samples, {.count = 4}).loss(), alone, 1e-10) << zero;
        const double trained = trainer.engine().evaluate(*samples, {.count = 4}).loss();
        EXPECT_GT(std::abs(alone - trained), 1e-4);
      });
    }
  }
}

// --- gradient noise scale

spec::Recipe noise_recipe() {
  spec::Recipe recipe = optim_recipe(OptimizerKind::kAdamw);
  recipe.train.noise_scale = true;
  recipe.train.noise_scale_ema = 0.5;
  return recipe;
}

/// The averages of |G|^2 and of the trace, of the whole and of each layer.
std::vector<double> noise_of(const spec::Recipe& recipe, int ranks, int steps) {
  std::vector<double> found;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    for (int step = 0; step < steps; ++step) trainer.step();
    const nlohmann::ordered_json averages = trainer.state().value("train/noise_scale").get();  // together
    if (rank.rank() != 0) return;
    for (const auto& [name, numbers] : averages.items()) {
      found.push_back(numbers[0].get<double>() / numbers[2].get<double>());
      found.push_back(numbers[1].get<double>() / numbers[2].get<double>());
    }
  });
  return found;
}

TEST(TrainedNoiseScale, DoesNotDependOnTheLayout) {
  const std::vector<double> plain = noise_of(noise_recipe(), 2, 3);
  ASSERT_EQ(plain.size(), 2U * 6) << "the whole, embedding, two layers, norm and head";
  const auto expect_same = [&](const spec::Recipe& recipe, int ranks, const std::string& what) {
    const std::vector<double> found = noise_of(recipe, ranks, 3);
    ASSERT_EQ(found.size(), plain.size()) << what;
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_NEAR(found[i], plain[i], 1e-6 * std::abs(plain[i])) << what << " " << i;
  };
  for (const int zero : {1, 2, 3}) {
    spec::Recipe recipe = noise_recipe();
    recipe.layout.zero = zero;
    expect_same(recipe, 2, "zero " + std::to_string(zero));
  }
  for (const bool sequence : {false, true}) {
    spec::Recipe recipe = noise_recipe();
    recipe.layout.tp = 2;
    recipe.layout.sequence_parallel = sequence;
    expect_same(recipe, 4, sequence ? "tp sp" : "tp");
  }
  spec::Recipe plainly = noise_recipe(), hard = noise_recipe();
  plainly.optim.grad_clip_norm = 0;
  hard.optim.grad_clip_norm = 1e-3;
  EXPECT_EQ(noise_of(plainly, 2, 1), noise_of(hard, 2, 1)) << "clipping comes after";
}

/// Whoever runs a layer, and whatever else is under way then, the first micro-batch of a replica is the small batch.
TEST(TrainedNoiseScale, OfEveryScheduleIsThatOfOneRank) {
  spec::Recipe one = noise_recipe();
  one.model.num_layers = 6;
  one.train.micro_batch_size = 1;
  std::map<std::pair<bool, int>, std::vector<double>> plain;  // by whether the embedding is tied, rows of a micro-batch
  std::vector<std::string> measured;
  for (const schedule::Kind& kind : schedule::kinds()) {
    for (const bool tied : {false, true}) {
      one.model.tied = tied;
      one.train.micro_batch_size = kind.name == "chimera-halving" ? 2 : 1;
      std::vector<double>& expected = plain[{tied, *one.train.micro_batch_size}];
      if (expected.empty()) expected = noise_of(one, 1, 2);
      spec::Recipe recipe = one;
      recipe.layout.pp = 2;
      recipe.pipeline.schedule = kind.name;
      const spec::ModelShape shape = model_shape(recipe);
      if (!spec::find_refusals(plan::run_setup(recipe, shape, {.ranks = 2})).empty()) continue;
      const std::vector<double> found = noise_of(recipe, 2, 2);
      ASSERT_EQ(found.size(), expected.size()) << kind.name;
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[i], 1e-6 * std::abs(expected[i])) << kind.name << " " << tied << " " << i;
      measured.push_back(std::string(kind.name) + (tied ? " tied" : ""));
    }
  }
  // GPipe goes back from the last micro-batch to the first; breadth-first begins backward when all micro-batches have
  // been through the head; zb-v and DualPipe have both ends of a tied embedding on one rank; Chimera's doubled forwards
  // take two micro-batches through the head at once.
  EXPECT_THAT(measured, testing::IsSupersetOf({"gpipe",
                                               "gpipe tied",
                                               "1f1b",
                                               "1f1b tied",
                                               "interleaved",
                                               "interleaved tied",
                                               "zb-h1",
                                               "zb-h1 tied",
                                               "zb-h2",
                                               "zb-v",
                                               "zb-v tied",
                                               "dualpipe",
                                               "dualpipe tied",
                                               "dualpipe-v",
                                               "dualpipe-v tied",
                                               "chimera",
                                               "chimera tied",
                                               "chimera-doubling",
                                               "chimera-doubling tied",
                                               "chimera-halving",
                                               "chimera-halving tied",
                                               "breadth-first",
                                               "breadth-first tied"}));
}

TEST(TrainedNoiseScale, OfStagesAndSharedRowsDoesNotDependOnTheLayout) {
  const std::vector<double> plain = noise_of(noise_recipe(), 2, 3);
  struct Layout {
    const char* name;
    int ranks;
    std::function<void(spec::LayoutConfig&)> change;
  };
  using spec::ContextKind;
  const std::vector<Layout> layouts = {
      {"cp ring", 4, [](auto& l) { l.cp = 2, l.cp_kind = ContextKind::kRing; }},
      {"cp gather, ZeRO 1", 4, [](auto& l) { l.cp = 2, l.cp_kind = ContextKind::kGather, l.zero = 1; }},
      {"Ulysses, ZeRO 3", 4, [](auto& l) { l.cp = 2, l.cp_kind = ContextKind::kUlysses, l.zero = 3; }},
      {"cp tp, ZeRO 2", 8, [](auto& l) { l.cp = 2, l.tp = 2, l.sequence_parallel = true, l.zero = 2; }},
      {"pp, ZeRO 1", 4, [](auto& l) { l.pp = 2, l.zero = 1; }},
      {"pp, ZeRO 2", 4, [](auto& l) { l.pp = 2, l.zero = 2; }},
      {"pp, ZeRO 3", 4, [](auto& l) { l.pp = 2, l.zero = 3; }},
      {"pp tp", 8, [](auto& l) { l.pp = 2, l.tp = 2, l.sequence_parallel = true; }},
      {"pp cp", 8, [](auto& l) { l.pp = 2, l.cp = 2; }},
  };
  for (const Layout& layout : layouts) {
    spec::Recipe recipe = noise_recipe();
    layout.change(recipe.layout);
    const std::vector<double> found = noise_of(recipe, layout.ranks, 3);
    ASSERT_EQ(found.size(), plain.size()) << layout.name;
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_NEAR(found[i], plain[i], 1e-6 * std::abs(plain[i])) << layout.name << " " << i;
  }
}

/// Ranks of a stage take micro-batches in turn; the first has one of them.
TEST(TrainedNoiseScale, OfStagesOnSeveralRanksIsThatOfOneRank) {
  spec::Recipe recipe = noise_recipe();
  recipe.train.micro_batch_size = 1;
  const std::vector<double> plain = noise_of(recipe, 1, 2);
  recipe.layout.pp = 3;
  for (const std::vector<int>& ranks : {std::vector<int>{2, 1}, std::vector<int>{1, 2}}) {
    recipe.pipeline.stage_ranks = ranks;
    const std::vector<double> found = noise_of(recipe, 3, 2);
    ASSERT_EQ(found.size(), plain.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], plain[i], 1e-6 * std::abs(plain[i])) << ranks[0] << " ranks first, " << i;
  }
}

/// Of one rank the small batch is its first micro-batch: what a run with just these rows computes.
TEST(TrainedNoiseScale, ComparesTheFirstMicroBatchWithTheWhole) {
  spec::Recipe small = optim_recipe(OptimizerKind::kAdamw);
  small.batch.global_batch_tokens = 2 * 12;
  double small_norm = 0, big_norm = 0, small_targets = 0, big_targets = 0;
  const auto first_step = [](const spec::Recipe& recipe, double& norm, double& targets) {
    with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
      norm = trainer.step().gradient_norm;
      const auto samples = data::open_samples(recipe, data::Split::kTrain);
      for (std::int64_t i = 0; i < recipe.batch.global_batch_tokens / 12; ++i) {
        const std::vector<std::int64_t> row = {i};
        for (const std::int64_t target : samples->read(row).targets) targets += target >= 0 ? 1 : 0;
      }
    });
  };
  first_step(small, small_norm, small_targets);
  first_step(noise_recipe(), big_norm, big_targets);
  NoiseAverage expected;
  expected.add(noise_estimate(small_norm * small_norm, small_targets, big_norm * big_norm, big_targets), 0.5);
  const std::vector<double> found = noise_of(noise_recipe(), 1, 1);
  ASSERT_GE(found.size(), 2U);
  EXPECT_NEAR(found[0], expected.gradient_square(), 1e-9 * std::abs(found[0]));
  EXPECT_NEAR(found[1], expected.trace(), 1e-9 * std::abs(found[1]));
}

TEST(NoiseBatch, GrowsInPowersOfTwoAndResumes) {
  spec::Recipe recipe = noise_recipe();
  recipe.train.noise_scale = false;
  recipe.train.noise_scale_ema = 0.9;
  recipe.batch.kind = spec::BatchKind::kNoise;
  recipe.batch.maximum = 4 * 96;
  recipe.batch.noise_factor = 1e6;  // whatever it measures
  recipe.batch.noise_every = 2;
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    std::int64_t tokens = 0, before = 96, changes = 0;
    for (int step = 0; step < 40 && before < 384; ++step) {
      const StepReport report = trainer.step();
      tokens += report.batch;
      EXPECT_EQ(report.position.tokens, tokens);
      EXPECT_TRUE(report.batch == before || (report.batch == 2 * before && step % 2 == 0)) << step;
      if (report.batch == before) continue;
      before = report.batch;
      ++changes;
      // A run that resumes here goes on with the same batch.
      const nlohmann::ordered_json position = trainer.state().value("train/position").get();
      EXPECT_GE(position.at("batch"), before);
      trainer.state().value("train/position").set(position);
      trainer.loaded();
    }
    EXPECT_EQ(before, 384);
    EXPECT_EQ(changes, 2);
  });
}

// --- muP

TEST(MupTraining, OfLayoutsEqualsOneRank) {
  spec::Recipe recipe = optim_recipe(OptimizerKind::kAdamw);
  recipe.model.mup_base_hidden_size = 8;
  recipe.model.mup_base_head_dim = 2;
  EXPECT_THAT(layouts_that_differ(recipe, {"tp=2 sp zero=1", "zero=3", "pp=2 tp=2"}), testing::IsEmpty());
}

// --- progressive layer dropping

TEST(LayerDropping, OfLayoutsEqualsOneRank) {
  spec::Recipe recipe = optim_recipe(OptimizerKind::kAdamw);
  recipe.model.num_layers = 4;
  recipe.train.layer_keep = 0.4;
  recipe.train.layer_keep_gamma = 5;  // after the first step about the end's
  EXPECT_THAT(layouts_that_differ(recipe, {"zero=1", "zero=2", "zero=3", "tp=2 sp zero=1", "tp=2 zero=3"}, 4),
              testing::IsEmpty());
  for (const auto kind : {spec::RecomputeKind::kFull, spec::RecomputeKind::kSqrt, spec::RecomputeKind::kRecursive}) {
    recipe.train.recompute = kind;
    EXPECT_THAT(layouts_that_differ(recipe, {"zero=3", "tp=2 sp"}, 4), testing::IsEmpty());
  }
}

/// Stages drop the layers that one rank drops, whatever runs again, and whether or not a step is taken back.
TEST(LayerDropping, OfStagesEqualsOneRank) {
  spec::Recipe recipe = optim_recipe(OptimizerKind::kAdamw);
  recipe.model.num_layers = 4;
  recipe.batch.global_batch_tokens = 8 * recipe.data.seq_len;
  recipe.train.micro_batch_size = 1;
  recipe.train.layer_keep = 0.3;
  recipe.train.layer_keep_gamma = 5;
  recipe.checkpoint.every = recipe.train.hash_every = 0;
  EXPECT_THAT(layouts_that_differ(recipe,
                                  {"pp=2 zero=3", "pp=2 tp=2 schedule=zb-h1", "pp=2 zero=2 schedule=zb-v",
                                   "pp=2 schedule=chimera-doubling", "pp=4 schedule=gpipe"},
                                  4),
              testing::IsEmpty());
  for (const auto kind : {spec::RecomputeKind::kSqrt, spec::RecomputeKind::kStage}) {
    recipe.train.recompute = kind;
    EXPECT_THAT(layouts_that_differ(recipe, {"pp=2 zero=3", "pp=2 schedule=zb-h1"}, 4), testing::IsEmpty());
  }
  recipe.train.recompute = spec::RecomputeKind::kNone;
  recipe.train.steps = 5;  // no multiple of the drains
  for (const char* kind : {"zb-h2", "pipedream-2bw"}) {
    for (const int zero : {0, 3}) {
      recipe.layout = {.dp = 2, .pp = 2, .zero = zero};
      recipe.pipeline.schedule = kind;
      recipe.pipeline.drain_every = 3;
      const VerifyResult result = verify_beside_one_rank(recipe, 4, 5);
      EXPECT_TRUE(result.equal) << kind << " zero " << zero << ": " << result.weights.name << " "
                                << result.weights.relative;
    }
  }
}

TEST(LayerDropping, OfPipelinesEqualsOneRank) {
  spec::Recipe recipe = optim_recipe(OptimizerKind::kAdamw);
  recipe.model.num_layers = 6;
  recipe.train.micro_batch_size = 1;
  recipe.train.layer_keep = 0.4;
  recipe.train.layer_keep_gamma = 5;
  std::vector<std::string> kinds;
  for (const schedule::Kind& kind : schedule::kinds()) {
    spec::Recipe staged = recipe;
    staged.layout.pp = 2;
    staged.pipeline.schedule = kind.name;
    if (!spec::find_refusals(plan::run_setup(staged, model_shape(staged), {.ranks = 2})).empty()) continue;
    const VerifyResult result = verify_beside_one_rank(staged, 2, 5);
    EXPECT_TRUE(result.equal) << kind.name << ": " << result.gradients.name << " " << result.gradients.relative;
    kinds.emplace_back(kind.name);
  }
  EXPECT_THAT(kinds, testing::IsSupersetOf({"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "chimera", "dualpipe"}));
  EXPECT_THAT(layouts_that_differ(recipe, {"pp=2 zero=1", "pp=2 zero=2", "pp=2 zero=3", "pp=2 tp=2 sp"}, 5),
              testing::IsEmpty());
}

/// The mean over steps, summed one by one, is what a split by time weighs layers with.
TEST(LayerDropping, SharesOfASplitAreMeansOverTheRun) {
  spec::Recipe recipe = optim_recipe(OptimizerKind::kAdamw);
  recipe.model.num_layers = 4;
  recipe.train.layer_keep = 0.5;
  recipe.train.steps = 20'000;
  const std::vector<double> shares =
      LayerDropping(recipe, model_shape(recipe))
          .kept_shares(std::vector<std::string>{"embedding", "layers.0", "layers.3", "head"});
  const nn::LayerDrop drop{.theta = 0.5, .gamma = 100.0 / 20'000, .layers = 4};
  double first = 0, last = 0;
  for (std::int64_t step = 0; step < 20'000; ++step) {
    first += nn::keep_probability(drop, step, 1) / 20'000;
    last += nn::keep_probability(drop, step, 4) / 20'000;
  }
  EXPECT_EQ(shares[0], 1);
  EXPECT_NEAR(shares[1], first, 1e-4);
  EXPECT_NEAR(shares[2], last, 1e-4);
  EXPECT_LT(shares[2], 0.51);
  EXPECT_EQ(shares[3], 1);
}

TEST(LayerDropping, ComputesKeptLayersOnly) {
  spec::Recipe recipe = optim_recipe(OptimizerKind::kAdamw);
  recipe.model.num_layers = 4;
  std::vector<double> all, some;
  for (const bool drops : {false, true}) {
    if (drops) {
      recipe.train.layer_keep = 0.2;
      recipe.train.layer_keep_gamma = 5;
    }
    with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
      for (int step = 0; step < 6; ++step) (drops ? some : all).push_back(trainer.step().flops);
      const auto samples = data::open_samples(recipe, data::Split::kTrain);
      EXPECT_TRUE(std::isfinite(trainer.evaluate(*samples, {.count = 2}).loss()));
    });
  }
  const nn::LayerDrop drop{.theta = 0.2, .gamma = 5, .layers = 4};
  EXPECT_EQ(some[0], all[0]) << "theta starts at 1";
  // Two equations for what a layer and the rest cost; every other step must agree.
  const auto kept = [&](int step) {
    int count = 0;
    for (int layer = 1; layer <= 4; ++layer)
      count += nn::is_kept(drop, static_cast<std::uint64_t>(recipe.run.seed), step, layer, "decoder");
    return count;
  };
  double layer = 0;
  for (int step = 1; step < 6; ++step) {
    if (kept(step) == 4) continue;
    const double each = (all[static_cast<std::size_t>(step)] - some[static_cast<std::size_t>(step)]) / (4 - kept(step));
    if (layer == 0) layer = each;
    EXPECT_NEAR(each, layer, 1e-9 * layer) << step;
  }
  EXPECT_GT(layer, 0) << "some layer was dropped";
}

}  // namespace
}  // namespace trireme::train
