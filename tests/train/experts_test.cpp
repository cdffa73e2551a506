// Models with experts in every layout: what one rank computes, auxiliary losses, loads, biases and gradient norms
// included; checkpoints between layouts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "tests/errors.h"
#include "tests/train/support.h"
#include "trireme/checkpoint/memory_snapshots.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/checkpoint/store.h"
#include "trireme/plan/layout_matrix.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;
using spec::RouterKind;

/// Latent attention, a dense layer and two with experts, multi-token prediction.
spec::Recipe expert_recipe() {
  spec::Recipe recipe = small_recipe(spec::Family::kDeepseekV3, spec::Precision::kFp64);
  recipe.model.num_layers = 3;
  recipe.model.mtp_depth = 1;
  recipe.model.rotary.scaling = spec::RotaryScaling::kNone;
  recipe.model.rotary.mscale = recipe.model.rotary.mscale_all_dim = 0;
  recipe.model.experts = {.num_experts = 4,
                          .top_k = 2,
                          .ffn_size = 8,
                          .num_shared_experts = 1,
                          .first_dense_layers = 1,
                          .router = RouterKind::kSigmoidTopK,
                          .aux_loss_weight = 0.02,
                          .bias_update_rate = 0.01};
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.train.micro_batch_size = 1;
  return recipe;
}

std::string text_of(const VerifyResult& result) {
  std::string text = fmt::format("gradients {} {:.1e} {}, weights {} {:.1e} {}", result.gradients.name,
                                 result.gradients.relative, result.gradients.first_parting, result.weights.name,
                                 result.weights.relative, result.weights.first_parting);
  for (const VerifyStep& step : result.steps)
    text += fmt::format("; loss {} {}, norm {} {}, {}", step.loss, step.reference_loss, step.norm, step.reference_norm,
                        step.term);
  return text;
}

/// In all layouts at once, beside one run on one rank.
void expect_equal(const spec::Recipe& recipe, const std::vector<std::string>& layouts, int ranks,
                  const std::function<void(spec::Recipe&)>& change = {}) {
  VerifyRequest request{.recipes = {}, .reference = recipe, .steps = 3};
  for (const std::string& layout : layouts) {
    const plan::LayoutCase one = plan::parse_layout(layout);
    request.recipes.push_back(recipe);
    request.recipes.back().layout = one.layout;
    request.recipes.back().pipeline = one.pipeline;
    if (change) change(request.recipes.back());
  }
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    verify(request, rank, [&](std::size_t i, const VerifyResult& result) {
      if (rank.rank() != 0) return;
      EXPECT_TRUE(result.equal) << layouts[i] << ": " << text_of(result);
    });
  });
}

TEST(Experts, OfTwoRanksEqualOneRank) {
  expect_equal(expert_recipe(),
               {"ep=2", "cp=2 ep=2", "ep=2 zero=1", "ep=2 zero=2", "ep=2 zero=3", "tp=2", "tp=2 sp", "pp=2",
                "pp=2 schedule=zb-h1", "dp=2 zero=3"},
               2);
}

TEST(Experts, OfFourRanksEqualOneRank) {
  expect_equal(expert_recipe(),
               {"ep=4", "ep=2 zero=3", "dp=2 cp=2 ep=4 zero=1", "dp=2 cp=2 ep=2 zero=2", "tp=2 sp ep=2",
                "tp=2 ep=2 zero=3", "pp=2 ep=2 schedule=1f1b zero=1", "pp=2 ep=2 schedule=dualpipe", "cp=4 ep=2",
                "zero=1 zero_group=2 ep=4", "zero=3 zero_group=2 ep=2"},
               4);
}

/// By nodes of two ranks, in slices of tensor-parallel ranks, and with copies of the two hottest experts, chosen anew
/// after every step.
TEST(Experts, EveryWayOfRowsIsTheSameUnderEveryLayout) {
  spec::Recipe recipe = expert_recipe();
  recipe.model.experts.num_experts = 8;
  recipe.model.experts.node_ranks = 2;
  expect_equal(recipe, {"ep=4", "dp=2 cp=2 ep=4 zero=1", "ep=4 zero=3"}, 4);
  recipe.model.experts.node_ranks = 0;
  recipe.model.experts.slice_over_tp = true;
  expect_equal(recipe, {"tp=2 ep=2", "tp=2 ep=2 zero=3", "tp=2 zero=1", "tp=2 pp=2", "tp=2 sp ep=2"}, 4);
  recipe.model.experts.slice_over_tp = false;
  recipe.model.experts.redundant_experts = 4, recipe.model.experts.rebalance_every = 1;
  expect_equal(recipe, {"ep=2", "ep=4", "dp=2 cp=2 ep=4 zero=1", "ep=2 zero=3", "pp=2 ep=2 schedule=zb-h1"}, 4);
}

/// Experts go to other ranks after every step, and copies of them with them: the same numbers, wherever they lie.
TEST(Experts, ThatMoveEqualOneRank) {
  spec::Recipe recipe = expert_recipe();
  recipe.model.experts.num_experts = 8;
  recipe.model.experts.move_experts = true, recipe.model.experts.rebalance_every = 1;
  expect_equal(recipe,
               {"ep=2", "ep=4", "dp=2 cp=2 ep=4 zero=1", "ep=2 zero=2", "ep=4 zero=3", "tp=2 ep=2 zero=1",
                "pp=2 ep=2 schedule=dualpipe", "pp=2 ep=2 schedule=zb-h1 zero=1", "zero=3 zero_group=2 ep=2"},
               4);
  recipe.model.experts.expert_dropout = 0.1;
  recipe.model.experts.redundant_experts = 4;
  expect_equal(recipe, {"ep=4", "ep=2 zero=3", "pp=2 ep=2 schedule=dualpipe-v zero=1"}, 4);
  for (const char* text : {"ep=4", "ep=2 zero=3", "pp=2 ep=2 schedule=dualpipe"}) {
    const plan::LayoutCase one = plan::parse_layout(text);
    recipe.layout = one.layout, recipe.pipeline = one.pipeline;
    with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank&) {
      std::int64_t moved = 0;
      for (int i = 0; i < 3; ++i) {
        const StepReport report = trainer.step();
        if (!report.experts_moved) continue;
        moved += report.experts_moved->experts;
        EXPECT_GT(report.experts_moved->bytes, 0);
        EXPECT_LT(report.experts_moved->busiest_after, report.experts_moved->busiest_before);
      }
      EXPECT_GT(moved, 0) << text;
    });
  }
}

/// Whatever else is kept of an expert goes with it: momentum of whole matrices, factors that an owner keeps by experts'
/// numbers, masters on the host and what layers compute with meanwhile, a moving average.
TEST(Experts, ThatMoveTakeAllThatIsKeptOfThemAlong) {
  spec::Recipe recipe = expert_recipe();
  recipe.model.experts.num_experts = 8;
  recipe.model.experts.move_experts = true, recipe.model.experts.rebalance_every = 1;
  recipe.optim.ema_decay = 0.9;
  for (const auto kind : {spec::OptimizerKind::kMuon, spec::OptimizerKind::kShampoo, spec::OptimizerKind::kAdafactor,
                          spec::OptimizerKind::kLamb, spec::OptimizerKind::kLion}) {
    SCOPED_TRACE(static_cast<int>(kind));
    recipe.optim.kind = kind;
    expect_equal(recipe, {"ep=4", "ep=2 zero=2"}, 4);
  }
  recipe.optim = {};
  recipe.optim.learning_rate = 1e-3, recipe.optim.grad_clip_norm = 1;
  expect_equal(recipe, {"ep=4", "ep=2 zero=1", "dp=2 cp=2 ep=4 zero=3"}, 4,
               [](auto& r) { r.layout.offload = spec::OffloadKind::kOptimizer; });
  // Updates that are seen a step late are no matter of layouts: held against experts that stay.
  for (const int zero : {0, 1, 3}) {
    recipe.layout = {.ep = 4, .zero = zero, .offload = spec::OffloadKind::kOptimizer};
    recipe.layout.delayed_update = true, recipe.layout.offload_warmup = 1;
    std::vector<double> losses[2];
    std::int64_t moved = 0;
    for (const bool moves : {false, true}) {
      recipe.model.experts.move_experts = moves, recipe.model.experts.rebalance_every = moves ? 1 : 0;
      with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank& rank) {
        for (int i = 0; i < 6; ++i) {
          const StepReport report = trainer.step();
          if (rank.rank() != 0) continue;
          losses[moves].push_back(report.loss);
          if (report.experts_moved) moved += report.experts_moved->experts;
        }
      });
    }
    EXPECT_GT(moved, 0);
    for (std::size_t i = 0; i < 6; ++i)
      EXPECT_NEAR(losses[0][i], losses[1][i], 1e-9) << "zero " << zero << " step " << i;
  }
}

/// Layers that a step leaves out have no loads in it, and neither biases nor places of experts depend on them.
TEST(Experts, OfDroppedLayersEqualOneRank) {
  spec::Recipe recipe = expert_recipe();
  recipe.model.num_layers = 4;
  recipe.train.layer_keep = 0.3, recipe.train.layer_keep_gamma = 5;
  expect_equal(recipe,
               {"ep=4", "dp=2 cp=2 ep=4 zero=1", "ep=2 zero=3", "tp=2 sp ep=2", "pp=2 ep=2 schedule=zb-h1",
                "pp=2 ep=2 schedule=dualpipe"},
               4);
  recipe.model.experts.redundant_experts = 4, recipe.model.experts.rebalance_every = 1;
  expect_equal(recipe, {"ep=4", "ep=2 zero=2"}, 4, [](auto& r) { r.model.experts.move_experts = true; });
  with_trainers(recipe, 1, [&](Trainer& trainer, comm::Rank&) {
    bool dropped = false;
    for (int i = 0; i < 4; ++i) {
      for (const nn::moe::LayerLoads& layer : trainer.step().loads) {
        const std::int64_t sum = std::reduce(layer.counts.begin(), layer.counts.end());
        EXPECT_TRUE(sum == 0 || sum == 8 * 12 * 2) << layer.layer;
        dropped = dropped || sum == 0;
      }
    }
    EXPECT_TRUE(dropped);
  });
}

/// A rehearsal leaves no trace: neither loads nor a decision of where experts lie.
TEST(Experts, RehearsedStepsDecideNothing) {
  spec::Recipe recipe = expert_recipe();
  recipe.model.experts.num_experts = 8;
  recipe.model.experts.move_experts = true, recipe.model.experts.rebalance_every = 1;
  recipe.layout.ep = 2;
  std::vector<double> plain, rehearsed;
  for (std::vector<double>* losses : {&plain, &rehearsed}) {
    with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
      if (losses == &rehearsed) {
        trainer.rehearse();
        for (const nn::moe::ExpertLoads& layer : *trainer.engine().balance()) {
          EXPECT_TRUE(layer.order.empty() && layer.copies.empty() && layer.since.empty());
          EXPECT_EQ(std::ranges::count(layer.counts, 0), 8);
        }
      }
      for (int i = 0; i < 3; ++i) {
        const double loss = trainer.step().loss;
        if (rank.rank() == 0) losses->push_back(loss);
      }
    });
  }
  EXPECT_EQ(plain, rehearsed);
}

/// Forwards of two micro-batches, backwards of half a one: rows of experts are dispatched again for each part.
TEST(Experts, InPartsOfAForwardEqualOneRank) {
  spec::Recipe recipe = expert_recipe();
  recipe.model.num_layers = 4;
  expect_equal(recipe, {"pp=2 ep=2 schedule=chimera-doubling", "pp=2 dp=2 zero=1 schedule=chimera-doubling"}, 4);
  recipe.train.micro_batch_size = 2;
  expect_equal(recipe, {"pp=2 ep=2 schedule=chimera-halving"}, 4);
  recipe.model.experts.redundant_experts = 2, recipe.model.experts.rebalance_every = 1;
  recipe.model.experts.move_experts = true;
  expect_equal(recipe, {"pp=2 ep=2 schedule=chimera-halving zero=1"}, 4);
}

/// Steps that run together, held against the same mathematics on one rank, loads of every step included; and stages on
/// several ranks.
TEST(Experts, OfSeveralStepsInFlightAndOfStagesOnSeveralRanksEqualTheirTwins) {
  spec::Recipe recipe = expert_recipe();
  recipe.model.num_layers = 4, recipe.model.mtp_depth = 0, recipe.model.tied = false;
  recipe.model.experts.bias_update_rate = 0;
  recipe.optim.grad_clip_norm = 0;
  recipe.train.steps = 8;
  expect_equal(
      recipe,
      {"pp=2 ep=2 schedule=pipedream", "pp=2 ep=2 schedule=pipedream-2bw", "pp=2 ep=2 schedule=pipedream zero=1"}, 4);
  expect_equal(recipe, {"pp=2 ep=2 schedule=zb-h2"}, 4,
               [](auto& r) { r.pipeline.drain_every = 3, r.checkpoint.every = r.train.hash_every = 0; });
  expect_equal(recipe, {"pp=4 schedule=1f1b"}, 4, [](auto& r) { r.pipeline.stage_ranks = {3, 1}; });
  // Pipelines side by side deal micro-batches out alike, so that ranks in one place share experts with each other.
  const auto two_and_one = [](spec::Recipe& r) { r.pipeline.stage_ranks = {2, 1}; };
  expect_equal(
      recipe,
      {"pp=3 dp=2 ep=2 schedule=1f1b", "pp=3 dp=2 ep=2 zero=1 schedule=1f1b", "pp=3 dp=2 ep=2 schedule=pipedream"}, 6,
      two_and_one);
  recipe.model.experts.bias_update_rate = 0.01;
  recipe.model.experts.move_experts = true, recipe.model.experts.rebalance_every = 1;
  expect_equal(recipe, {"pp=3 dp=2 ep=2 schedule=1f1b"}, 6, two_and_one);
}

/// Switch Transformer: encoder and decoder with relative positions.
TEST(Experts, OfSwitchEqualOneRank) {
  spec::Recipe recipe = small_recipe(spec::Family::kT5, spec::Precision::kFp64);
  recipe.model.experts = {.num_experts = 4, .top_k = 1, .ffn_size = 8, .every = 2, .router = RouterKind::kSwitch};
  recipe.model.experts.capacity_factor = 1, recipe.model.experts.aux_loss_weight = 0.02;
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.train.micro_batch_size = 1;
  expect_equal(recipe, {"ep=2", "tp=2", "tp=2 sp", "ep=2 zero=3"}, 2);
}

/// Overlapped pairs of passes go on in turn while rows are on their way: the schedule says so, the executor does it,
/// and nothing changes, whatever else is computed in these passes.
TEST(Experts, PairsInPartsEqualOneRank) {
  spec::Recipe recipe = expert_recipe();
  recipe.model.num_layers = 5;
  const std::vector<std::string> layouts{"pp=2 ep=2 schedule=dualpipe", "pp=2 ep=2 schedule=dualpipe-v zero=1",
                                         "pp=2 ep=2 schedule=dualpipe zero=2", "pp=2 cp=2 ep=2 schedule=dualpipe-v"};
  expect_equal(recipe, layouts, 4);
  recipe.model.experts.arena = 1;  // further passes over rows that one has no room for
  expect_equal(recipe, {"pp=2 ep=2 schedule=dualpipe"}, 4);
  recipe.model.experts.arena = 1.5;
  recipe.train.recompute = spec::RecomputeKind::kFull;
  expect_equal(recipe, {"pp=2 ep=2 schedule=dualpipe"}, 4);

  recipe = expert_recipe();
  recipe.model.num_layers = 5;
  recipe.layout.pp = 2, recipe.layout.ep = 2;
  recipe.pipeline.schedule = "dualpipe";
  with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank& rank) {
    trainer.step();
    const std::string executed = trainer.engine().timeline();
    if (rank.rank() != 0) return;
    for (const char* part : {"\"FA", "\"BA", "\"D", "\"E", "\"C"}) EXPECT_THAT(executed, testing::HasSubstr(part));
  });
}

/// Ranks of one ZeRO group that share experts with different others take different numbers of passes, other ones for
/// every seed: calls stand in one order all the same, or the group would say which two differ.
TEST(Experts, PairsInPartsCallInOneOrderWhateverRoutersChoose) {
  spec::Recipe recipe = expert_recipe();
  recipe.model.num_layers = 5;
  recipe.model.experts.num_experts = 8;
  recipe.model.experts.arena = 1;
  for (const int seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    recipe.run.seed = seed;
    recipe.train.recompute = seed == 3 ? spec::RecomputeKind::kFull : spec::RecomputeKind::kNone;
    expect_equal(recipe,
                 {"pp=2 cp=4 ep=2 zero=3 schedule=dualpipe", "pp=2 dp=2 cp=2 ep=2 zero=2 schedule=dualpipe",
                  "pp=2 dp=2 cp=2 ep=4 zero=3 schedule=dualpipe-v"},
                 8);
  }
}

TEST(Experts, CutsOfTheBatchAndRecomputationChangeNothing) {
  for (const auto kind : {spec::RecomputeKind::kFull, spec::RecomputeKind::kSelective}) {
    spec::Recipe recipe = expert_recipe();
    recipe.train.recompute = kind;
    recipe.train.micro_batch_size = 2;
    VerifyRequest request{.recipes = {recipe}, .reference = expert_recipe(), .steps = 3};
    request.recipes[0].layout.ep = 2;
    comm::run_ranks(2, [&](comm::Rank& rank) {
      verify(request, rank, [&](std::size_t, const VerifyResult& result) {
        if (rank.rank() != 0) return;
        EXPECT_TRUE(result.equal) << text_of(result);
      });
    });
  }
}

/// Ranks with fewer samples keep step with rows that count nowhere: not in losses, not in loads.
TEST(Experts, SamplesThatRanksDoNotDivideAreCountedOnce) {
  spec::Recipe recipe = expert_recipe();
  recipe.batch.global_batch_tokens = 5 * 12;
  expect_equal(recipe, {"ep=2", "ep=4", "ep=2 zero=2"}, 4);
}

TEST(Experts, EveryRouterIsTheSameUnderEveryLayout) {
  const spec::Experts common{.num_experts = 4, .top_k = 2, .ffn_size = 8};
  std::vector<spec::Experts> routers;
  const auto add = [&](RouterKind kind, const std::function<void(spec::Experts&)>& change) {
    routers.push_back(common);
    routers.back().router = kind;
    change(routers.back());
  };
  add(RouterKind::kSoftmaxTopK, [](auto& e) { e.aux_loss_weight = 0.02, e.z_loss_weight = 0.01; });
  add(RouterKind::kSwitch,
      [](auto& e) { e.top_k = 1, e.capacity_factor = 1, e.aux_loss_weight = 0.02, e.jitter = 0.1; });
  add(RouterKind::kGshard, [](auto& e) { e.capacity_factor = 1, e.aux_loss_weight = 0.02, e.balance_group = 2; });
  add(RouterKind::kNoisyTopK, [](auto& e) { e.importance_loss_weight = e.load_loss_weight = 0.02; });
  add(RouterKind::kStrictBalance, [](auto& e) { e.threshold_loss_weight = 0.1; });
  add(RouterKind::kExpertChoice, [](auto& e) { e.expert_dropout = 0.1; });
  for (const spec::Experts& experts : routers) {
    SCOPED_TRACE(static_cast<int>(experts.router));
    spec::Recipe recipe = expert_recipe();
    recipe.model.mtp_depth = 0;
    recipe.model.num_layers = 2;
    recipe.model.experts = experts;
    recipe.train.micro_batch_size = experts.balance_group;
    expect_equal(recipe, {"dp=2 cp=2 ep=4", "tp=2 sp ep=2"}, 4);
  }
}

/// Whoever begins from a published folder says what is to be different alone: how experts are balanced and where their
/// rows go is no matter of weights, which come with their biases. What is would be another model.
TEST(Experts, OfAFolderKeepWhatIsNotGiven) {
  spec::Recipe recipe;
  recipe.model.init_from = TRIREME_FIXTURES "/models/deepseek_v3";
  recipe.data.seq_len = 12;
  recipe.data.synthetic.kind = spec::SyntheticKind::kCopy;
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.train.micro_batch_size = 1;
  recipe.train.steps = 4;
  recipe.layout.ep = 4;
  const spec::Experts stored = model_shape(recipe).experts;
  ASSERT_EQ(stored.num_experts, 8);
  spec::Experts expected = stored;
  expected.node_ranks = 2, expected.redundant_experts = 4, expected.move_experts = true;
  expected.rebalance_every = 1, expected.aux_loss_weight = 1e-3, expected.bias_update_rate = 0.01;
  recipe.model.experts.node_ranks = 2, recipe.model.experts.redundant_experts = 4;
  recipe.model.experts.move_experts = true, recipe.model.experts.rebalance_every = 1;
  recipe.model.experts.aux_loss_weight = 1e-3, recipe.model.experts.bias_update_rate = 0.01;
  EXPECT_EQ(model_shape(recipe).experts, expected);
  spec::Recipe whole = recipe;
  whole.model.experts = expected;
  EXPECT_EQ(model_shape(whole).experts, expected);
  with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank& rank) {
    double largest = 0;
    for (const nn::moe::ExpertLoads& layer : *trainer.engine().balance())
      largest = std::max(largest, layer.bias.abs().max().item<double>());
    EXPECT_GT(largest, 0) << "biases of the folder";
    const double loss = trainer.step().loss;
    if (rank.rank() == 0) {
      EXPECT_GT(loss, 0);
    }
  });
  recipe.model.experts.top_k = 2;
  EXPECT_THAT(message_of([&] { model_shape(recipe); }), testing::HasSubstr("experts.top_k = 2"));
  recipe.model.experts.top_k = 1;  // the default: the folder's 3 stay
  recipe.model.init_from = TRIREME_FIXTURES "/models/llama";
  EXPECT_THAT(message_of([&] { model_shape(recipe); }), testing::HasSubstr("a model without experts"));
}

std::uint64_t state_hash(Trainer& trainer, comm::Rank& rank) {
  return nn::total_hash(checkpoint::Saver(trainer.state(), rank.world(), {}).hashes());
}

/// Sums stand in one order, whoever is faster: a second run has the bits of the first.
TEST(Experts, RunAgainWithTheSameBits) {
  spec::Recipe recipe = expert_recipe();
  recipe.precision.compute = spec::Precision::kFp32;
  recipe.model.experts.num_experts = 8;
  recipe.model.experts.move_experts = true, recipe.model.experts.rebalance_every = 2;
  recipe.model.experts.redundant_experts = 4;
  for (const char* text : {"ep=4", "dp=2 cp=2 ep=2 zero=3", "pp=2 ep=2 zero=1 schedule=dualpipe"}) {
    const plan::LayoutCase one = plan::parse_layout(text);
    recipe.layout = one.layout, recipe.pipeline = one.pipeline;
    std::vector<std::uint64_t> hashes;
    for (int run = 0; run < 2; ++run) {
      with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank& rank) {
        for (int i = 0; i < 4; ++i) trainer.step();
        const std::uint64_t hash = state_hash(trainer, rank);
        if (rank.rank() == 0) hashes.push_back(hash);
      });
    }
    EXPECT_EQ(hashes[0], hashes[1]) << text;
  }
}

/// Logical experts and biases: the same hash whoever holds them, or copies of them, and the same steps after it.
TEST(Experts, GoOnFromCheckpointsOfOtherExpertParallelRanks) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("experts-{}", ::getpid());
  constexpr int kMore = 10;
  for (const int from : {1, 2, 4}) {
    fs::remove_all(folder);
    std::uint64_t saved = 0;
    std::vector<double> losses;
    spec::Recipe recipe = expert_recipe();
    recipe.layout.ep = from;
    if (from > 1) recipe.model.experts.move_experts = true, recipe.model.experts.rebalance_every = 1;
    if (from == 2) recipe.model.experts.redundant_experts = 4;
    with_trainers(recipe, from, [&](Trainer& trainer, comm::Rank& rank) {
      checkpoint::Saver saver(trainer.state(), rank.world(), {});
      std::int64_t moved = 0;
      for (int i = 0; i < 3; ++i) {
        const StepReport report = trainer.step();
        if (report.experts_moved) moved += report.experts_moved->experts;
      }
      EXPECT_EQ(moved > 0, from == 2) << "of four ranks each has one; and the saver was made before";
      const auto outcome = saver.save({.folder = folder, .step = 3});
      const std::uint64_t hash = state_hash(trainer, rank);
      std::vector<double> after;
      for (int i = 0; i < kMore; ++i) after.push_back(trainer.step().loss);
      if (rank.rank() != 0) return;
      EXPECT_EQ(outcome->why, "");
      EXPECT_NE(trainer.state().find("router_bias/layers.1.mlp"), nullptr);
      EXPECT_GT(trainer.state().at("router_bias/layers.1.mlp").tensor.abs().max().item<float>(), 0);
      saved = hash;
      losses = after;
    });
    for (const int to : {1, 2, 4}) {
      recipe.layout.ep = to;
      with_trainers(recipe, to, [&](Trainer& trainer, comm::Rank& rank) {
        checkpoint::load(formats::CheckpointFolder(folder / formats::checkpoint_name(3)), trainer.state());
        trainer.loaded();
        const std::uint64_t hash = state_hash(trainer, rank);
        if (rank.rank() == 0) {
          EXPECT_EQ(hash, saved) << from << " -> " << to;
        }
        for (const double loss : losses) EXPECT_NEAR(trainer.step().loss, loss, 1e-9) << from << " -> " << to;
      });
    }
  }
  fs::remove_all(folder);
}

/// Snapshots in the memory of ranks that were planned before experts moved hold them by their numbers too.
TEST(Experts, ThatMoveAreInMemorySnapshotsWhereTheyLie) {
  spec::Recipe recipe = expert_recipe();
  recipe.model.experts.num_experts = 8;
  recipe.layout.ep = 2;
  recipe.model.experts.move_experts = true, recipe.model.experts.rebalance_every = 1;
  std::vector<checkpoint::MemorySnapshots> kept(2);
  std::uint64_t taken = 0, loaded = 0;
  with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
    checkpoint::SnapshotTaker taker(trainer.state(), rank.world(), kept[static_cast<std::size_t>(rank.rank())], 1);
    std::int64_t moved = 0;
    for (int i = 0; i < 3; ++i) {
      const StepReport report = trainer.step();
      if (report.experts_moved) moved += report.experts_moved->experts;
    }
    EXPECT_GT(moved, 0);
    taker.take(3);
    const std::uint64_t hash = state_hash(trainer, rank);
    if (rank.rank() == 0) taken = hash;
  });
  with_trainers(recipe, 2, [&](Trainer& trainer, comm::Rank& rank) {
    const auto& mine = kept[static_cast<std::size_t>(rank.rank())];
    const auto newest = checkpoint::newest_snapshot(mine, rank.world());
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(newest->step, 3);
    checkpoint::load_snapshot(mine, *newest, trainer.state(), rank.world());
    trainer.loaded();
    const std::uint64_t hash = state_hash(trainer, rank);
    if (rank.rank() == 0) loaded = hash;
  });
  EXPECT_EQ(taken, loaded);
}

/// Loads of a step: each token of each sample chooses top_k experts in every layer, whoever counts them.
TEST(Experts, LoadsAddUpToTheChoicesOfAllTokens) {
  spec::Recipe recipe = expert_recipe();
  recipe.layout = {.pp = 2, .ep = 2};
  with_trainers(recipe, 4, [&](Trainer& trainer, comm::Rank&) {
    const StepReport report = trainer.step();
    ASSERT_EQ(report.loads.size(), 3U);
    EXPECT_EQ(report.loads[0].layer, "layers.1.mlp");
    EXPECT_EQ(report.loads[2].layer, "mtp.0.mlp");
    for (const nn::moe::LayerLoads& layer : report.loads) {
      std::int64_t sum = 0;
      for (const std::int64_t count : layer.counts) sum += count;
      EXPECT_EQ(sum, 8 * 12 * 2) << layer.layer;
    }
  });
}

}  // namespace
}  // namespace trireme::train
