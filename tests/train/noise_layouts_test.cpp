// The gradient noise scale where gradients of a first micro-batch are not simply there: experts on several ranks,
// optimizers on the host, embeddings that several stages share.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/train/support.h"
#include "trireme/optim/gradients.h"
#include "trireme/plan/layout_matrix.h"
#include "trireme/plan/run_setup.h"

namespace trireme::train {
namespace {

using spec::Family;
using spec::RouterKind;

spec::Recipe measured(Family family) {
  spec::Recipe recipe = small_recipe(family, spec::Precision::kFp64);
  recipe.batch.global_batch_tokens = 8 * 12;
  recipe.train.micro_batch_size = 2;
  recipe.train.noise_scale = true;
  recipe.train.noise_scale_ema = 0.5;
  return recipe;
}

spec::Recipe measured_experts() {
  spec::Recipe recipe = measured(Family::kMistral);
  recipe.model.experts = {.num_experts = 4,
                          .top_k = 2,
                          .ffn_size = 8,
                          .num_shared_experts = 1,
                          .router = RouterKind::kSoftmaxTopK,
                          .aux_loss_weight = 0.02};
  return recipe;
}

/// By part of the model: the averages of |G|^2 and of the trace.
std::map<std::string, std::pair<double, double>> averages_of(const spec::Recipe& recipe, int ranks, int steps) {
  std::map<std::string, std::pair<double, double>> found;
  with_trainers(recipe, ranks, [&](Trainer& trainer, comm::Rank& rank) {
    for (int step = 0; step < steps; ++step) trainer.step();
    const nlohmann::ordered_json averages = trainer.state().value("train/noise_scale").get();  // together
    if (rank.rank() != 0) return;
    for (const auto& [name, numbers] : averages.items())
      found[name] = {numbers[0].get<double>() / numbers[2].get<double>(),
                     numbers[1].get<double>() / numbers[2].get<double>()};
  });
  return found;
}

void expect_alike(const std::map<std::string, std::pair<double, double>>& found,
                  const std::map<std::string, std::pair<double, double>>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, pair] : expected) {
    EXPECT_NEAR(found.at(name).first, pair.first, 1e-6 * std::abs(pair.first)) << what << ", |G|^2 of " << name;
    EXPECT_NEAR(found.at(name).second, pair.second, 1e-6 * std::abs(pair.second)) << what << ", trace of " << name;
  }
}

/// In layouts as `verify --layouts` writes them.
void expect_alike_in(const spec::Recipe& recipe, const std::map<std::string, int>& layouts,
                     const std::map<std::string, std::pair<double, double>>& expected) {
  for (const auto& [text, ranks] : layouts) {
    spec::Recipe changed = recipe;
    const plan::LayoutCase layout = plan::parse_layout(text);
    changed.layout = layout.layout;
    changed.pipeline = layout.pipeline;
    expect_alike(averages_of(changed, ranks, 2), expected, text);
  }
}

TEST(NoiseOfExperts, DoesNotDependOnTheLayoutWhereEachRankHasAllOfThem) {
  const spec::Recipe recipe = measured_experts();
  const auto plain = averages_of(recipe, 2, 2);
  ASSERT_EQ(plain.size(), 6U);
  expect_alike_in(
      recipe, {{"zero=1", 2}, {"zero=3", 2}, {"tp=2", 4}, {"tp=2 sp", 4}, {"cp=2", 4}, {"pp=2", 4}, {"cp=2 ep=2", 4}},
      plain);
}

/// GPipe and others go back from later micro-batches first; an arena of one row makes passes of experts.
TEST(NoiseOfExperts, DoesNotDependOnWhoAddsFirst) {
  int tried = 0;
  for (const int ep : {1, 2}) {
    spec::Recipe recipe = measured_experts();
    recipe.layout.ep = ep;
    const auto plain = averages_of(recipe, 2, 2);
    for (const char* schedule : {"gpipe", "breadth-first", "zb-h2", "chimera-doubling"}) {
      spec::Recipe staged = recipe;
      staged.layout.pp = 2;
      staged.pipeline.schedule = schedule;
      staged.model.experts.arena = ep == 1 ? recipe.model.experts.arena : 1;
      if (!spec::find_refusals(plan::run_setup(staged, model_shape(staged), {.ranks = 4})).empty()) continue;
      expect_alike(averages_of(staged, 4, 2), plain, fmt::format("{}, ep {}", schedule, ep));
      ++tried;
    }
  }
  EXPECT_GE(tried, 6);
}

TEST(NoiseOfExperts, DoesNotDependOnTheLayoutWhereTwoRanksShareThem) {
  spec::Recipe recipe = measured_experts();
  recipe.layout.ep = 2;
  const auto plain = averages_of(recipe, 2, 2);
  expect_alike_in(recipe,
                  {{"ep=2 zero=1", 2},
                   {"ep=2 zero=2", 2},
                   {"ep=2 zero=3", 2},
                   {"ep=2 tp=2", 4},
                   {"ep=2 tp=2 sp", 4},
                   {"ep=4 cp=2", 4},
                   {"ep=2 pp=2", 4},
                   {"ep=2 pp=2 tp=2", 8}},
                  plain);
  spec::Recipe passes = recipe;
  passes.model.experts.arena = 1;  // uneven rows in several passes
  expect_alike(averages_of(passes, 2, 2), plain, "passes");
  spec::Recipe copies = recipe;
  copies.model.experts.redundant_experts = 2, copies.model.experts.rebalance_every = 1;
  expect_alike(averages_of(copies, 2, 2), plain, "copies of experts");
  spec::Recipe moving = recipe;
  moving.model.experts.move_experts = true, moving.model.experts.rebalance_every = 1;
  expect_alike(averages_of(moving, 2, 2), plain, "experts that move");
}

/// What one rank computes of these rows alone: the sum of squares of experts' gradients and of all others'.
std::pair<double, double> squares_of_rows(const spec::Recipe& recipe, const std::vector<std::int64_t>& rows,
                                          double& targets) {
  std::pair<double, double> found;
  spec::Recipe plain = recipe;
  spec::undistribute(plain);
  plain.train.noise_scale = false;
  with_trainers(plain, 1, [&](Trainer& trainer, comm::Rank&) {
    const auto samples = data::open_samples(plain, data::Split::kTrain);
    std::vector<data::Batch> batches = {samples->read(rows)};
    targets = 0;
    for (const std::int64_t target : batches.front().targets) targets += target >= 0 ? 1 : 0;
    auto& engine = dynamic_cast<SingleStepEngine&>(trainer.engine());
    engine.compute(batches, [&] {
      nn::Context context;
      context.training = true;
      context.seed = plain.run.seed;
      context.gradient_scale = 1 / targets;
      context.sample_scale = 1 / static_cast<double>(rows.size());
      return context;
    });
    const std::vector<double> squares = optim::gradient_squares(engine.params());
    std::size_t next = 0;
    for (const nn::Param& param : engine.params()) {
      if (!param.trainable) continue;
      (param.name.find(".experts.") != std::string::npos ? found.first : found.second) += squares[next++];
    }
  });
  return found;
}

/// Against gradients of these very rows. Of two ranks that share experts the small batch of experts is both ranks'.
TEST(NoiseOfExperts, IsThatOfSmallBatchesComputedAlone) {
  spec::Recipe recipe = measured_experts();
  recipe.layout.ep = 2;
  double targets = 0, all = 0;
  const auto whole = squares_of_rows(recipe, {0, 1, 2, 3, 4, 5, 6, 7}, all);
  double both_targets = 0;
  const auto both = squares_of_rows(recipe, {0, 1, 4, 5}, both_targets);
  double dense = 0;
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{0, 1}, std::vector<std::int64_t>{4, 5}})
    dense += squares_of_rows(recipe, rows, targets).second / 2;
  const NoiseEstimate expected =
      noise_estimate(both.first, both_targets, whole.first, all) + noise_estimate(dense, targets, whole.second, all);
  const auto found = averages_of(recipe, 2, 1).at("");
  EXPECT_NEAR(found.first, expected.gradient_square, 1e-9 * std::abs(expected.gradient_square));
  EXPECT_NEAR(found.second, expected.trace, 1e-9 * std::abs(expected.trace));
}

TEST(NoiseOfExperts, NeedsTwoBatchSizesOfThem) {
  spec::Recipe recipe = measured_experts();
  recipe.layout.ep = 2;
  recipe.train.micro_batch_size = 4;  // one micro-batch on each of two ranks
  const auto refused = spec::find_refusals(plan::run_setup(recipe, model_shape(recipe), {.ranks = 2}));
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].rule->name, "noise-two-batches");
  recipe.train.micro_batch_size = 2;  // as its hint says
  EXPECT_TRUE(spec::find_refusals(plan::run_setup(recipe, model_shape(recipe), {.ranks = 2})).empty());
  recipe.train.micro_batch_size = 4;
  recipe.layout.ep = 1;
  EXPECT_TRUE(spec::find_refusals(plan::run_setup(recipe, model_shape(recipe), {.ranks = 2})).empty());
}

TEST(NoiseOfOffload, IsThatOfTheDevice) {
  spec::Recipe recipe = measured(Family::kLlama);
  const auto plain = averages_of(recipe, 2, 2);
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  for (const int zero : {0, 1, 2, 3}) {
    recipe.layout.zero = zero;
    expect_alike(averages_of(recipe, 2, 2), plain, "offload, ZeRO " + std::to_string(zero));
  }
  recipe.layout.pp = 2;
  recipe.layout.zero = 1;
  expect_alike(averages_of(recipe, 4, 2), plain, "offload of stages");
}

/// An embedding that a decoder, an encoder, or modules of multi-token prediction and the head share, and biases of
/// scores that layers of two stages share: what the first micro-batch adds to it on all stages is one gradient. T5's
/// stages share two such parameters, which the first has in another order than the last.
TEST(NoiseOfSharedTables, OfStagesIsThatOfOneRank) {
  std::map<std::string, spec::Recipe> models;
  models["transformer"] = measured(Family::kTransformer);
  models["multi-token prediction"] = measured(Family::kDeepseekV3);
  models["multi-token prediction"].model.mtp_depth = 1;
  models["t5"] = measured(Family::kT5);
  models["t5"].model.num_layers = 6;
  for (auto& [name, recipe] : models) {
    recipe.train.micro_batch_size = 1;
    const auto plain = averages_of(recipe, 1, 2);
    int tried = 0;
    for (const char* schedule : {"gpipe", "1f1b", "interleaved"}) {
      spec::Recipe staged = recipe;
      staged.layout.pp = 2;
      staged.pipeline.schedule = schedule;
      if (!spec::find_refusals(plan::run_setup(staged, model_shape(staged), {.ranks = 2})).empty()) continue;
      expect_alike(averages_of(staged, 2, 2), plain, name + ", " + schedule);
      // Ranks that share rows see other blocks of keys, and so add to T5's biases more or less often.
      staged.layout.cp = 2;
      staged.layout.cp_kind = spec::ContextKind::kGather;
      expect_alike(averages_of(staged, 4, 2), plain, name + ", cp, " + schedule);
      ++tried;
    }
    EXPECT_EQ(tried, 3) << name;
  }
}

}  // namespace
}  // namespace trireme::train
