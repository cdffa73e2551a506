// Routers: vectors by hand, losses at their known points, gradients against finite differences.
#include "trireme/nn/moe/router.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/errors.h"
#include "trireme/base/random.h"
#include "trireme/nn/moe/balance.h"
#include "trireme/nn/moe/router_math.h"

namespace trireme::nn::moe {
namespace {

using spec::RouterKind;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

double logit(double probability) { return std::log(probability / (1 - probability)); }

/// Logits with what belongs to them.
struct Group {
  std::vector<double> logits;
  std::vector<std::int64_t> numbers;
  std::vector<double> bias = {};
  bool training = true;

  RouterInput input() const {
    return {.logits = logits,
            .token_numbers = numbers,
            .bias = bias,
            .layer = "layers.2.mlp",
            .seed = 7,
            .step = 3,
            .training = training};
  }
};

Group random_group(const Router& router, std::int64_t tokens, std::uint64_t seed = 1) {
  Group group{.logits = std::vector<double>(static_cast<std::size_t>(tokens * router.outputs())), .numbers = {}};
  Random(seed, "logits").fill_normal(0, group.logits);
  for (std::int64_t token = 0; token < tokens; ++token) group.numbers.push_back((5LL << 32) + token);
  if (router.bias_kind() != Router::BiasKind::kNone) {
    group.bias.resize(static_cast<std::size_t>(router.experts()));
    Random(seed, "bias").fill_uniform(0, group.bias);
    for (double& value : group.bias) value *= 0.3;
  }
  return group;
}

std::vector<std::int32_t> experts_of(const Routing& routing, std::int64_t token) {
  std::vector<std::int32_t> experts;
  for (const Choice& choice : routing.of_token(token)) experts.push_back(choice.expert);
  return experts;
}

std::vector<double> gates_of(const Routing& routing, std::int64_t token) {
  std::vector<double> gates;
  for (const Choice& choice : routing.of_token(token)) gates.push_back(choice.gate);
  return gates;
}

/// Tokens that an expert computes.
std::vector<std::int64_t> held_by(const Routing& routing, std::int32_t expert) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t token = 0; token < routing.tokens(); ++token) {
    for (const Choice& choice : routing.of_token(token)) {
      if (choice.expert == expert && choice.kept) tokens.push_back(token);
    }
  }
  return tokens;
}

double loss_of(const Routing& routing, const std::string& name) {
  for (const RouterLoss& loss : routing.losses) {
    if (loss.name == name) return loss.value;
  }
  ADD_FAILURE() << "no loss " << name;
  return 0;
}

TEST(TopK, TiesGoToTheLowestNumber) {
  EXPECT_THAT(top_k(std::vector<double>{1, 3, 3, 2, 3}, 4), ElementsAre(1, 2, 4, 3));
  EXPECT_THAT(top_k(std::vector<double>{0, 0}, 5), ElementsAre(0, 1));
}

/// The scores of two equal tokens under two layouts, as they were seen: rounding chose the one or the other.
TEST(TopTokens, OfTokensThatDifferByRoundingTakeTheFirst) {
  for (const double other : {0.246474343851008, 0.24647434385100803, 0.24647434385100797}) {
    const std::vector<double> scores{0.246474343851008, 0.5, other, 0.5, 0.1, 0.6, 0.4, 0.2};
    EXPECT_THAT(top_tokens(scores, 2, 0, 2), testing::ElementsAre(3, 0));
    EXPECT_THAT(top_tokens(scores, 2, 1, 3), testing::ElementsAre(2, 0, 1));
  }
}

TEST(CvSquared, IsOfThePopulation) {
  EXPECT_EQ(cv_squared(std::vector<double>{4, 0, 0, 0}), 3);
  EXPECT_EQ(cv_squared(std::vector<double>{3, 1, 2, 2}), 0.125);
  EXPECT_EQ(cv_squared(std::vector<double>{0, 0}), 0);
}

TEST(Capacity, RoundsUpWhatIsNotWholeOnPaper) {
  EXPECT_EQ(expert_capacity(4, 2, 2, 0.5), 2);
  EXPECT_EQ(expert_capacity(10, 1, 1, 1.1), 10);
  EXPECT_EQ(expert_capacity(100, 1, 10, 1.1), 11) << "1.1 has no exact binary form";
  EXPECT_EQ(expert_capacity(10, 1, 4, 1), 3);
  EXPECT_EQ(expert_capacity(0, 1, 4, 1), 0);
}

/// The published gate: groups scored by their two best s + b, gates without b.
TEST(SigmoidTopK, IsDeepSeekV3sGate) {
  const auto router = make_router({.num_experts = 8,
                                   .top_k = 3,
                                   .router = RouterKind::kSigmoidTopK,
                                   .routed_scaling_factor = 2.5,
                                   .num_groups = 4,
                                   .top_k_groups = 2,
                                   .bias_update_rate = 1e-3});
  Group group{.logits = {}, .numbers = {0}, .bias = {0, 0, 0, .3, 0, 0, .35, 0}};
  for (const double s : {.9, .1, .6, .5, .8, .2, .3, .7}) group.logits.push_back(logit(s));
  const Routing routing = router->route(group.input());
  EXPECT_THAT(experts_of(routing, 0), ElementsAre(3, 7, 6)) << "groups 1 and 3 are kept, of scores 1.4 and 1.35";
  EXPECT_THAT(gates_of(routing, 0),
              ElementsAre(DoubleNear(5. / 6, 1e-14), DoubleNear(7. / 6, 1e-14), DoubleNear(.5, 1e-14)));
}

TEST(SigmoidTopK, ScoresGroupsAsTheRecipeSays) {
  spec::Experts config{.num_experts = 6,
                       .top_k = 2,
                       .router = RouterKind::kSigmoidTopK,
                       .num_groups = 2,
                       .top_k_groups = 1,
                       .group_score = spec::GroupScore::kMax};
  Group group{.logits = {}, .numbers = {0}};
  for (const double s : {.9, .1, .1, .8, .8, .7}) group.logits.push_back(logit(s));
  EXPECT_THAT(experts_of(make_router(config)->route(group.input()), 0), ElementsAre(0, 1)) << "max: the first group";
  for (const auto score : {spec::GroupScore::kTop2, spec::GroupScore::kTopK}) {
    config.group_score = score;
    EXPECT_THAT(experts_of(make_router(config)->route(group.input()), 0), ElementsAre(3, 4)) << "the second's two best";
  }
}

TEST(SigmoidTopK, SequenceLossIsThatOfThePaper) {
  const auto router =
      make_router({.num_experts = 4, .top_k = 1, .router = RouterKind::kSigmoidTopK, .aux_loss_weight = 1});
  Group group{.logits = {}, .numbers = {0, 1, 2, 3}};
  for (int token = 0; token < 4; ++token) {
    for (const double s : {.7, .1, .1, .1}) group.logits.push_back(logit(s));
  }
  const Routing routing = router->route(group.input());
  EXPECT_THAT(routing.counts, ElementsAre(4, 0, 0, 0));
  EXPECT_NEAR(loss_of(routing, kAuxLoss), 2.8, 1e-14);
}

TEST(Bias, MovesAgainstTheLoadByAFixedRate) {
  std::vector<float> bias(4, 0);
  update_bias(bias, std::vector<std::int64_t>{10, 6, 8, 8}, 1e-3, false);
  EXPECT_THAT(bias, ElementsAre(-1e-3F, 1e-3F, 0.0F, 0.0F));
  update_bias(bias, std::vector<std::int64_t>{9, 1, 1, 1}, 1e-3, true);
  EXPECT_NEAR(std::accumulate(bias.begin(), bias.end(), 0.0), 0, 1e-9) << "centred";
}

/// A zipf-like stream: with the bias loads even out, gates stay what the logits say.
TEST(Bias, BalancesASkewedStreamWithin300Steps) {
  for (const double rate : {0.0, 1e-3}) {
    const auto router =
        make_router({.num_experts = 8, .top_k = 2, .router = RouterKind::kSigmoidTopK, .bias_update_rate = rate});
    std::vector<float> bias(8, 0);
    double ratio = 0;
    for (int step = 0; step < 300; ++step) {
      const std::int64_t tokens = step < 299 ? 256 : 8192;  // many in the last, which is looked at
      Group group = random_group(*router, tokens, static_cast<std::uint64_t>(step) + 1);
      for (std::size_t i = 0; i < group.logits.size(); ++i) {
        group.logits[i] = 0.5 * group.logits[i] - 0.5 * std::log(1.0 + static_cast<double>(i % 8));
      }
      if (rate > 0) group.bias.assign(bias.begin(), bias.end());
      const Routing routing = router->route(group.input());
      update_bias(bias, routing.counts, rate, false);
      ratio = static_cast<double>(*std::ranges::max_element(routing.counts)) * 8 / static_cast<double>(2 * tokens);
      const auto first = routing.of_token(0);
      double sum = 0;
      for (const Choice& choice : first) sum += sigmoid(group.logits[static_cast<std::size_t>(choice.expert)]);
      for (const Choice& choice : first) {
        ASSERT_NEAR(choice.gate, sigmoid(group.logits[static_cast<std::size_t>(choice.expert)]) / sum, 1e-14);
      }
    }
    if (rate > 0) {
      EXPECT_LT(ratio, 1.1);
    } else {
      EXPECT_GT(ratio, 2);
    }
  }
}

TEST(Gshard, DropsInTheOrderOfThePaper) {
  const auto router =
      make_router({.num_experts = 2, .top_k = 2, .capacity_factor = 0.5, .router = RouterKind::kGshard});
  // First choices 0, 0, 0, 1. Nearly even gates: 2 g2 is 1 but for 1e-9, so every coin says keep.
  const Group group{.logits = {0, 0, 0, 0, 0, 0, 0, 1e-9}, .numbers = {0, 1, 2, 3}};
  const Routing routing = router->route(group.input());
  EXPECT_THAT(held_by(routing, 0), ElementsAre(0, 1));
  EXPECT_THAT(held_by(routing, 1), ElementsAre(0, 3)) << "t3's first choice came before t0's second";
  EXPECT_THAT(routing.dropped, ElementsAre(2, 2));
  EXPECT_NEAR(routing.of_token(2)[0].gate, 0.5, 1e-8) << "not normalised again after dropping";
  EXPECT_NEAR(loss_of(routing, kAuxLoss), 0.25, 1e-8) << "(1/E) sum (c/N) m = 1/2 (3/4 1/2 + 1/4 1/2)";
}

TEST(Gshard, LossIsOneOverESquaredWhenEvenAndOneOverEWhenCollapsed) {
  const auto router = make_router({.num_experts = 4, .top_k = 2, .router = RouterKind::kGshard});
  Group even{.logits = {}, .numbers = {0, 1, 2, 3}}, collapsed = even;
  for (int token = 0; token < 4; ++token) {
    for (int expert = 0; expert < 4; ++expert) {
      even.logits.push_back(expert == token ? 50 : 0);
      collapsed.logits.push_back(expert == 0 ? 50 : 0);
    }
  }
  EXPECT_NEAR(loss_of(router->route(even.input()), kAuxLoss), 1. / 16, 1e-12);
  EXPECT_NEAR(loss_of(router->route(collapsed.input()), kAuxLoss), 1. / 4, 1e-12);
  EXPECT_NEAR(loss_of(router->route(even.input()), kScaledAuxLoss), 1, 1e-12);
}

TEST(Gshard, TakesTheSecondChoiceWithTwiceItsGate) {
  const auto router = make_router({.num_experts = 2, .top_k = 2, .router = RouterKind::kGshard});
  Group group;
  for (std::int64_t token = 0; token < 4000; ++token) {
    group.numbers.push_back(token);
    group.logits.insert(group.logits.end(), {logit(0.8), 0});
  }
  const double kept = static_cast<double>(held_by(router->route(group.input()), 1).size());
  EXPECT_NEAR(kept / 4000, 0.4, 0.03);
  group.training = false;
  EXPECT_EQ(held_by(router->route(group.input()), 1).size(), 4000U) << "no draws in evaluation";
}

TEST(Switch, LossIsItsWeightWhenEvenAndETimesThatWhenCollapsed) {
  const auto router =
      make_router({.num_experts = 4, .capacity_factor = 1, .router = RouterKind::kSwitch, .aux_loss_weight = 0.01});
  Group even{.logits = {}, .numbers = {0, 1, 2, 3}}, collapsed = even;
  for (int token = 0; token < 4; ++token) {
    for (int expert = 0; expert < 4; ++expert) {
      even.logits.push_back(expert == token ? 50 : 0);
      collapsed.logits.push_back(expert == 0 ? 50 : 0);
    }
  }
  EXPECT_NEAR(loss_of(router->route(even.input()), kAuxLoss), 1, 1e-12);
  const Routing routing = router->route(collapsed.input());
  EXPECT_NEAR(loss_of(routing, kAuxLoss), 4, 1e-12);
  EXPECT_THAT(held_by(routing, 0), ElementsAre(0)) << "ceil(4 / 4 * 1) = 1, in the order of tokens";
  EXPECT_THAT(routing.counts, ElementsAre(4, 0, 0, 0)) << "f counts choices before dropping";
  RouterInput one_by_one = collapsed.input();
  one_by_one.limited = false;
  EXPECT_THAT(router->route(one_by_one).dropped, ElementsAre(0, 0, 0, 0));
}

TEST(SoftmaxTopK, GatesAreTheSoftmaxOfTheKeptLogits) {
  spec::Experts config{.num_experts = 4, .top_k = 2};
  const Group group{.logits = {1, 3, 2, 3}, .numbers = {0}};
  const Routing mixtral = make_router(config)->route(group.input());
  EXPECT_THAT(experts_of(mixtral, 0), ElementsAre(1, 3));
  EXPECT_THAT(gates_of(mixtral, 0), ElementsAre(DoubleNear(0.5, 1e-15), DoubleNear(0.5, 1e-15)));
  config.norm_topk_prob = false;
  const double p = std::exp(3) / (std::exp(1) + 2 * std::exp(3) + std::exp(2));
  EXPECT_THAT(gates_of(make_router(config)->route(group.input()), 0),
              ElementsAre(DoubleNear(p, 1e-15), DoubleNear(p, 1e-15)));
}

TEST(ExpertChoice, ExpertsTakeTheirBestTokens) {
  const auto router = make_router({.num_experts = 2, .top_k = 1, .router = RouterKind::kExpertChoice});
  const Group group{.logits = {5, 0, 4, 0, 3, 0, 3, 0}, .numbers = {0, 1, 2, 3}};
  const Routing routing = router->route(group.input());
  EXPECT_THAT(held_by(routing, 0), ElementsAre(0, 1));
  EXPECT_THAT(held_by(routing, 1), ElementsAre(2, 3));
  EXPECT_NEAR(routing.of_token(2)[0].gate, 1 / (1 + std::exp(3.0)), 1e-15);
}

TEST(StrictBalance, EachExpertTakesEquallyMany) {
  const auto router = make_router({.num_experts = 4, .top_k = 2, .router = RouterKind::kStrictBalance});
  Group group = random_group(*router, 12);
  const Routing routing = router->route(group.input());
  EXPECT_THAT(routing.counts, ElementsAre(6, 6, 6, 6));
  for (std::int64_t token = 0; token < 12; ++token) {
    double sum = 0;
    for (const Choice& choice : routing.of_token(token)) sum += choice.gate;
    EXPECT_NEAR(sum, routing.of_token(token).empty() ? 0 : 1, 1e-14);
  }
  group.training = false;
  group.bias.assign(4, 2.0);
  EXPECT_TRUE(router->route(group.input()).choices.empty()) << "no probability is above 2";
}

TEST(NoisyTopK, KeepsExactlyKAndEvaluatesWithoutNoise) {
  for (const std::int64_t groups : {1, 2}) {
    const auto router = make_router(
        {.num_experts = 6, .top_k = 2, .router = RouterKind::kNoisyTopK, .num_groups = groups, .top_k_groups = groups});
    Group group = random_group(*router, 9);
    const Routing noisy = router->route(group.input());
    for (std::int64_t token = 0; token < 9; ++token) {
      ASSERT_EQ(noisy.of_token(token).size(), 2U);
      double sum = 0;
      for (const Choice& choice : noisy.of_token(token)) sum += choice.gate;
      EXPECT_NEAR(sum, 1, 1e-14);
    }
    group.training = false;
    const Routing plain = router->route(group.input());
    const std::size_t before = groups > 1 ? 2 * static_cast<std::size_t>(groups) : 0;
    const auto logits = std::span<const double>(group.logits).subspan(before, 6);
    if (groups == 1) {
      EXPECT_EQ(experts_of(plain, 0), top_k(logits, 2));
    }
    std::vector<std::int32_t> with, without;
    for (const Choice& choice : noisy.choices) with.push_back(choice.expert);
    for (const Choice& choice : plain.choices) without.push_back(choice.expert);
    EXPECT_NE(with, without);
  }
}

/// The load is the probability over draws of one expert's noise: a fixed other expert, a known normal integral.
TEST(NoisyTopK, LoadIsTheNormalDistribution) {
  const auto router = make_router({.num_experts = 2,
                                   .top_k = 1,
                                   .router = RouterKind::kNoisyTopK,
                                   .importance_loss_weight = 1,
                                   .load_loss_weight = 1});
  const Group group = random_group(*router, 1);
  const Routing routing = router->route(group.input());
  std::vector<double> draws(2), noisy(2), load(2);
  Random(7, "router/layers.2.mlp/expert noise/step 3")
      .fill_normal(static_cast<std::uint64_t>(group.numbers[0]) * 2, draws);
  for (std::size_t i = 0; i < 2; ++i) noisy[i] = group.logits[i] + draws[i] * softplus(group.logits[2 + i]);
  for (std::size_t i = 0; i < 2; ++i) {
    load[i] = 0.5 * std::erfc(-(group.logits[i] - noisy[1 - i]) / softplus(group.logits[2 + i]) / std::sqrt(2.0));
  }
  EXPECT_NEAR(loss_of(routing, kLoadLoss), cv_squared(load), 1e-13);
  EXPECT_EQ(loss_of(routing, kImportanceLoss), 1) << "one token, one expert: importance 1 and 0";
}

TEST(Routers, DrawsDependOnTheTokenAndNotOnItsNeighbours) {
  for (const RouterKind kind : {RouterKind::kNoisyTopK, RouterKind::kGshard}) {
    const auto router = make_router({.num_experts = 4, .top_k = 2, .router = kind});
    const Group all = random_group(*router, 8);
    const Routing whole = router->route(all.input());
    for (std::int64_t token = 0; token < 8; ++token) {
      const auto logits = row_of(std::span<const double>(all.logits), token, router->outputs());
      const Group one{.logits = {logits.begin(), logits.end()},
                      .numbers = {all.numbers[static_cast<std::size_t>(token)]}};
      const Routing alone = router->route(one.input());
      EXPECT_EQ(experts_of(alone, 0), experts_of(whole, token));
      EXPECT_EQ(gates_of(alone, 0), gates_of(whole, token));
      for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(alone.of_token(0)[i].kept, whole.of_token(token)[i].kept);
    }
  }
}

TEST(Routers, NameLayerStepAndTokenOfANaN) {
  const auto router = make_router({.num_experts = 2});
  Group group{.logits = {0, 0, 0, std::numeric_limits<double>::quiet_NaN()}, .numbers = {5LL << 32, (5LL << 32) + 1}};
  EXPECT_THAT(message_of([&] { router->route(group.input()); }),
              HasSubstr("layers.2.mlp gave NaN in step 3 for token 1 of sample 5"));
}

TEST(Routers, TakeNoTokensAtAll) {
  for (int kind = 0; kind < 7; ++kind) {
    const auto router = make_router({.num_experts = 2,
                                     .top_k = static_cast<RouterKind>(kind) == RouterKind::kGshard ? 2 : 1,
                                     .router = static_cast<RouterKind>(kind)});
    const Group none = random_group(*router, 0);
    const Routing routing = router->route(none.input());
    EXPECT_TRUE(routing.choices.empty());
    EXPECT_TRUE(router->backward(none.input(), routing, {}, 1).logits.empty());
  }
}

struct GradientCase {
  std::string name;
  spec::Experts config;
};

void PrintTo(const GradientCase& one, std::ostream* out) { *out << one.name; }

class RouterGradients : public testing::TestWithParam<GradientCase> {};

/// sum of gates by fixed weights + weighted losses, as backward() differentiates it.
double objective(const Router& router, const Group& group, std::span<const double> of_gates, double loss_scale) {
  const Routing routing = router.route(group.input());
  double sum = 0;
  for (std::size_t i = 0; i < routing.choices.size(); ++i) {
    if (routing.choices[i].kept) sum += of_gates[i] * routing.choices[i].gate;
  }
  for (const RouterLoss& loss : routing.losses) sum += loss_scale * loss.weight * loss.value;
  return sum;
}

TEST_P(RouterGradients, EqualFiniteDifferences) {
  const auto router = make_router(GetParam().config);
  Group group = random_group(*router, 11);
  const Routing routing = router->route(group.input());
  std::vector<double> of_gates(routing.choices.size());
  Random(2, "gates").fill_normal(0, of_gates);
  std::vector<double> kept = of_gates;
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i] *= routing.choices[i].kept;
  const double scale = 1.7, step = 1e-5;
  const RouterGrad grad = router->backward(group.input(), routing, kept, scale);
  const auto compare = [&](std::vector<double>& at, const std::vector<double>& ours, const char* what) {
    double largest = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const double before = at[i];
      at[i] = before + step;
      const double above = objective(*router, group, of_gates, scale);
      at[i] = before - step;
      const double below = objective(*router, group, of_gates, scale);
      at[i] = before;
      EXPECT_NEAR(ours[i], (above - below) / (2 * step), 2e-8) << what << " " << i;
      largest = std::max(largest, std::abs(ours[i]));
    }
    EXPECT_GT(largest, 1e-3) << what;
  };
  compare(group.logits, grad.logits, "logit");
  if (!grad.bias.empty()) compare(group.bias, grad.bias, "bias");
}

const GradientCase kGradientCases[] = {
    {"mixtral", {.num_experts = 5, .top_k = 2, .aux_loss_weight = 0.3, .z_loss_weight = 0.2}},
    {"qwen",
     {.num_experts = 5,
      .top_k = 2,
      .capacity_factor = 0.75,
      .norm_topk_prob = false,
      .routed_scaling_factor = 1.5,
      .aux_loss_weight = 0.3}},
    {"all_of_them", {.num_experts = 3, .top_k = 3, .aux_loss_weight = 0.3}},
    {"switch_top1",
     {.num_experts = 4,
      .capacity_factor = 1,
      .router = RouterKind::kSwitch,
      .aux_loss_weight = 0.5,
      .z_loss_weight = 0.2}},
    {"gshard",
     {.num_experts = 4, .top_k = 2, .capacity_factor = 0.8, .router = RouterKind::kGshard, .aux_loss_weight = 3}},
    {"deepseek_v3",
     {.num_experts = 8,
      .top_k = 3,
      .router = RouterKind::kSigmoidTopK,
      .routed_scaling_factor = 2.5,
      .num_groups = 4,
      .top_k_groups = 2,
      .aux_loss_weight = 0.5,
      .bias_update_rate = 1e-3}},
    {"sigmoid_unnormalised",
     {.num_experts = 4,
      .top_k = 2,
      .router = RouterKind::kSigmoidTopK,
      .norm_topk_prob = false,
      .aux_loss_weight = 0.5}},
    {"noisy",
     {.num_experts = 5,
      .top_k = 2,
      .router = RouterKind::kNoisyTopK,
      .importance_loss_weight = 0.3,
      .load_loss_weight = 0.4}},
    {"noisy_two_levels",
     {.num_experts = 12,
      .top_k = 4,
      .router = RouterKind::kNoisyTopK,
      .num_groups = 3,
      .top_k_groups = 2,
      .importance_loss_weight = 0.3,
      .load_loss_weight = 0.4}},
    {"noisy_all",
     {.num_experts = 3,
      .top_k = 3,
      .router = RouterKind::kNoisyTopK,
      .importance_loss_weight = 0.3,
      .load_loss_weight = 0.4}},
    {"strict", {.num_experts = 4, .top_k = 2, .router = RouterKind::kStrictBalance, .threshold_loss_weight = 0.5}},
    {"expert_choice", {.num_experts = 4, .top_k = 2, .router = RouterKind::kExpertChoice, .z_loss_weight = 0.1}},
};
INSTANTIATE_TEST_SUITE_P(All, RouterGradients, testing::ValuesIn(kGradientCases),
                         [](const auto& test) { return test.param.name; });

/// With its load loss a gate stays even, without it collapses: a toy task in which any expert will do.
TEST(NoisyTopK, CollapsesWithoutItsLoadLoss) {
  double cv[2];
  for (const bool balanced : {false, true}) {
    const auto router = make_router(
        {.num_experts = 4, .top_k = 1, .router = RouterKind::kNoisyTopK, .load_loss_weight = balanced ? 1.0 : 0});
    std::vector<double> weights(8, 0);  // of a constant input: logits, then noise logits
    std::vector<double> skill(4, 0);    // of the experts, which learn from what they get
    std::vector<double> importance(4, 0);
    for (int step = 0; step < 400; ++step) {
      Group group;
      for (std::int64_t token = 0; token < 32; ++token) {
        group.numbers.push_back(step * 32 + token);
        group.logits.insert(group.logits.end(), weights.begin(), weights.end());
      }
      const Routing routing = router->route(group.input());
      std::vector<double> of_gates;
      for (const Choice& choice : routing.choices) of_gates.push_back(-skill[static_cast<std::size_t>(choice.expert)]);
      // k = 1 has no gradient through its gate, which is 1: the logit of what did well is raised, as REINFORCE would.
      RouterGrad grad = router->backward(group.input(), routing, of_gates, 32);
      for (std::size_t i = 0; i < routing.choices.size(); ++i) {
        const auto expert = static_cast<std::size_t>(routing.choices[i].expert);
        grad.logits[8 * i + expert] -= skill[expert];
        skill[expert] = std::min(1.0, skill[expert] + 0.002);
      }
      for (std::size_t i = 0; i < grad.logits.size(); ++i) weights[i % 8] -= 0.1 * grad.logits[i] / 32;
      if (step < 300) continue;
      for (const Choice& choice : routing.choices) importance[static_cast<std::size_t>(choice.expert)] += choice.gate;
    }
    cv[balanced] = cv_squared(importance);
  }
  EXPECT_LT(cv[1], 0.1);
  EXPECT_GT(cv[0], 1);
}

TEST(Routers, RefuseWhatDoesNotGoTogetherWithAFix) {
  const auto words = [](const spec::Experts& config) { return words_of([&] { make_router(config); }); };
  EXPECT_THAT(words({.num_experts = 4, .top_k = 5}), HasSubstr("experts.top_k = 4"));
  EXPECT_THAT(words({.num_experts = 4, .top_k = 2, .router = RouterKind::kSwitch}), HasSubstr("experts.top_k = 1"));
  EXPECT_THAT(words({.num_experts = 6, .router = RouterKind::kSigmoidTopK, .num_groups = 4}),
              HasSubstr("experts.num_groups = 2"));
  EXPECT_THAT(words({.num_experts = 8, .top_k = 3, .router = RouterKind::kSigmoidTopK, .num_groups = 4}),
              HasSubstr("experts.top_k_groups = 2"));
  EXPECT_THAT(words({.num_experts = 4, .capacity_factor = 1, .router = RouterKind::kExpertChoice}),
              HasSubstr("leave experts.capacity_factor out"));
  EXPECT_THAT(words({.num_experts = 4, .bias_update_rate = 1e-3}), HasSubstr("sigmoid-top-k"));
  EXPECT_THAT(words({.num_experts = 4, .arena = 0.5}), HasSubstr("experts.arena = 1.5"));
}

}  // namespace
}  // namespace trireme::nn::moe
