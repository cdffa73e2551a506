// The layer against a loop over experts: values, losses and every gradient; passes, ranks and recomputation change
// none.
#include "trireme/nn/moe/moe_layer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>

#include "tests/errors.h"
#include "tests/nn/moe/moe_cases.h"
#include "trireme/base/instruction_set.h"
#include "trireme/comm/rank.h"
#include "trireme/nn/autograd_layer.h"
#include "trireme/nn/moe/fp8_experts.h"
#include "trireme/nn/recompute.h"

namespace trireme::nn::moe {
namespace {

using spec::RouterKind;
using testing::HasSubstr;

struct MoeResult {
  at::Tensor y, dx;
  std::map<std::string, at::Tensor> gradients;
  std::vector<LossTerm> losses;
};

MoeResult run_moe(Layer& layer, Params& params, const MoeCase& c, std::int64_t first, std::int64_t count,
                  at::ScalarType type = at::kDouble, bool deferred = false) {
  Context context = moe_context(c, first, count);
  Tape tape;
  const Tensors y = layer.forward({moe_input(c, first, count).to(type)}, context, &tape);
  MoeResult result{.y = y[0], .dx = {}, .gradients = {}, .losses = context.losses};
  tape.set_deferring(deferred);
  result.dx = layer.backward({moe_input(c, first, count, "dy").to(type)}, context, tape)[0];
  EXPECT_TRUE(tape.empty());
  EXPECT_EQ(context.losses.size(), result.losses.size()) << "backward tells no losses";
  if (deferred) tape.run_weight_gradients();
  for (Param& param : params) {
    EXPECT_FALSE(param.gradient_empty) << param.name;
    result.gradients[param.name] = param.gradient.clone();
  }
  return result;
}

double moe_difference(const at::Tensor& ours, const at::Tensor& theirs) {
  if (theirs.numel() == 0) return ours.numel() == 0 ? 0 : 1;
  const at::Tensor exact = theirs.to(at::kDouble);
  return (ours.to(at::kDouble) - exact).norm().item<double>() / std::max(exact.norm().item<double>(), 1e-12);
}

double weighted_sum(const std::vector<LossTerm>& losses) {
  double sum = 0;
  for (const LossTerm& term : losses) sum += term.weight * term.sum;
  return sum;
}

class MoeLayers : public testing::TestWithParam<MoeCase> {};

TEST_P(MoeLayers, EqualALoopOverExpertsInDouble) {
  const MoeCase& c = GetParam();
  const auto built = build_moe(c, Precision::kFp64), same = build_moe(c, Precision::kFp64);
  const MoeResult ours = run_moe(*built->layer, built->params, c, 0, c.samples);

  std::vector<Param*> list;
  for (Param& param : same->params) list.push_back(&param);
  AutogradLayer oracle(list, [&](const Tensors& inputs, const Tensors& values) {
    NamedWeights weights;
    for (std::size_t i = 0; i < list.size(); ++i) weights[list[i]->name] = values[i];
    return moe_oracle(c, inputs[0], weights, same->balance.begin()->bias);
  });
  Context context = moe_context(c, 0, c.samples);
  Tape tape;
  const Tensors theirs = oracle.forward({moe_input(c, 0, c.samples)}, context, &tape);
  const at::Tensor dx = oracle.backward(
      {moe_input(c, 0, c.samples, "dy"), at::full({}, context.sample_scale, at::kDouble)}, context, tape)[0];

  EXPECT_LE(moe_difference(ours.y, theirs[0]), 1e-12);
  EXPECT_LE(moe_difference(ours.dx, dx), 1e-12);
  EXPECT_NEAR(weighted_sum(ours.losses), theirs[1].item<double>(), 1e-12);
  for (Param& param : same->params) {
    if (param.gradient_empty) {
      EXPECT_EQ(ours.gradients.at(param.name).abs().max().item<double>(), 0) << param.name;
      continue;
    }
    EXPECT_LE(moe_difference(ours.gradients.at(param.name), param.gradient), 1e-12) << param.name;
  }
}

TEST_P(MoeLayers, GiveTheSameBitsDeferredAndRecomputed) {
  const MoeCase& c = GetParam();
  const auto now = build_moe(c, Precision::kFp32), later = build_moe(c, Precision::kFp32);
  const MoeResult first = run_moe(*now->layer, now->params, c, 0, c.samples, at::kFloat);
  const MoeResult deferred = run_moe(*later->layer, later->params, c, 0, c.samples, at::kFloat, true);
  auto wrapped = build_moe(c, Precision::kFp32);
  Recomputed recomputed(std::move(wrapped->layer));
  const MoeResult again = run_moe(recomputed, wrapped->params, c, 0, c.samples, at::kFloat);
  for (const MoeResult* other : {&deferred, &again}) {
    EXPECT_TRUE(at::equal(first.y, other->y));
    EXPECT_TRUE(at::equal(first.dx, other->dx));
    EXPECT_EQ(weighted_sum(first.losses), weighted_sum(other->losses));
    for (const auto& [name, gradient] : first.gradients)
      EXPECT_TRUE(at::equal(gradient, other->gradients.at(name))) << name;
  }
  EXPECT_EQ(now->balance.begin()->counts, wrapped->balance.begin()->counts) << "counted once";
}

/// Two micro-batches, as two data-parallel ranks or as gradient accumulation, are one batch.
TEST_P(MoeLayers, AddUpOverMicroBatches) {
  const MoeCase& c = GetParam();
  if (c.samples < 2 || (c.samples / 2) % c.config.balance_group != 0) return;
  const auto whole = build_moe(c, Precision::kFp64), cut = build_moe(c, Precision::kFp64);
  const MoeResult all = run_moe(*whole->layer, whole->params, c, 0, c.samples);
  const MoeResult front = run_moe(*cut->layer, cut->params, c, 0, c.samples / 2);
  const MoeResult back = run_moe(*cut->layer, cut->params, c, c.samples / 2, c.samples - c.samples / 2);
  EXPECT_LE(moe_difference(at::cat({front.y, back.y}), all.y), 1e-13);
  EXPECT_LE(moe_difference(at::cat({front.dx, back.dx}), all.dx), 1e-13);
  EXPECT_NEAR(weighted_sum(front.losses) + weighted_sum(back.losses), weighted_sum(all.losses), 1e-13);
  for (const auto& [name, gradient] : all.gradients)
    EXPECT_LE(moe_difference(back.gradients.at(name), gradient), 1e-13) << name;
  EXPECT_EQ(whole->balance.begin()->counts, cut->balance.begin()->counts);
}

TEST_P(MoeLayers, AreNearInEveryPrecision) {
  const MoeCase& c = GetParam();
  if (c.samples * c.length == 0) return;
  for (const auto& [precision, tolerance] : {std::pair{Precision::kFp32, 3e-6}, std::pair{Precision::kBf16, 0.04}}) {
    const auto ours = build_moe(c, precision), exact = build_moe(c, Precision::kFp64);
    auto from = ours->params.begin();
    for (Param& param : exact->params) {
      param.master.copy_((from++)->value);
      publish(param);
    }
    Context here = moe_context(c, 0, c.samples), there = here;
    const at::Tensor x = moe_input(c, 0, c.samples).to(compute_type(precision));
    const at::Tensor y = ours->layer->forward(x, here, nullptr),
                     z = exact->layer->forward(x.to(at::kDouble), there, nullptr);
    EXPECT_LE(moe_difference(y, z), tolerance) << at::toString(y.scalar_type());
  }
}

std::vector<MoeCase> moe_cases() {
  std::vector<MoeCase> cases{
      {.name = "mixtral", .config = {.num_experts = 5, .top_k = 2, .aux_loss_weight = 0.3, .z_loss_weight = 0.1}},
      {.name = "two_samples_a_group",
       .config = {.num_experts = 5, .top_k = 2, .aux_loss_weight = 0.3, .balance_group = 2}},
      {.name = "qwen2",
       .config = {.num_experts = 5,
                  .top_k = 2,
                  .num_shared_experts = 2,
                  .norm_topk_prob = false,
                  .shared_expert_gate = true}},
      {.name = "shared_without_gate", .config = {.num_experts = 4, .top_k = 2, .num_shared_experts = 1}},
      {.name = "deepseek_v3",
       .config = {.num_experts = 8,
                  .top_k = 3,
                  .num_shared_experts = 1,
                  .router = RouterKind::kSigmoidTopK,
                  .routed_scaling_factor = 2.5,
                  .num_groups = 4,
                  .top_k_groups = 2,
                  .aux_loss_weight = 0.2,
                  .bias_update_rate = 1e-3}},
      {.name = "switch_drops",
       .config = {.num_experts = 3, .capacity_factor = 1, .router = RouterKind::kSwitch, .aux_loss_weight = 0.3}},
      {.name = "gshard_drops",
       .config = {.num_experts = 3, .top_k = 2, .capacity_factor = 0.8, .router = RouterKind::kGshard}},
      {.name = "expert_choice", .config = {.num_experts = 3, .top_k = 2, .router = RouterKind::kExpertChoice}},
      {.name = "not_gated", .config = {.num_experts = 4, .top_k = 2}, .gated = false},
      {.name = "two_experts_get_all", .config = {.num_experts = 6, .top_k = 2}, .router_scale = 0},
      {.name = "all_experts", .config = {.num_experts = 3, .top_k = 3, .aux_loss_weight = 0.1}},
      {.name = "one_expert", .config = {.num_experts = 1}},
      {.name = "one_token", .config = {.num_experts = 4, .top_k = 2}, .samples = 1, .length = 1},
      {.name = "no_tokens", .config = {.num_experts = 4, .top_k = 2}, .samples = 0},
  };
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, MoeLayers, testing::ValuesIn(moe_cases()),
                         [](const auto& test) { return test.param.name; });

/// Each expert by itself is what a linear layer's three FP8 GEMMs are, zeros below its rows or none.
TEST(Fp8Experts, MultiplyQuantisedOperandsOfEachExpertAlone) {
  for (const auto gemm : {spec::GemmPrecision::kFp8, spec::GemmPrecision::kFp8Blocks}) {
    const std::int64_t grain = gemm == spec::GemmPrecision::kFp8Blocks ? 128 : 16;
    SCOPED_TRACE(grain);
    Params params;
    Param& weight = params.add("layers.0.mlp.experts.in.weight", {3, 2 * grain, grain}, {Init::Kind::kNormal, 1}, true);
    initialise(params, Precision::kBf16, /*seed=*/2);
    weight.gemm = gemm;
    const std::int64_t rows = grain + 5;
    const std::vector<std::int64_t> offsets{0, 5, 5, rows};  // 5 rows, none, and as many as need no zeros
    const auto random_rows = [&](std::int64_t width, const char* name) {
      at::Tensor x = at::empty({rows, width}, at::kDouble);
      Random(4, name).fill_normal(0, std::span(x.data_ptr<double>(), static_cast<std::size_t>(x.numel())));
      x[0] *= 50;  // an outlier of one expert is no business of the others
      return x.to(at::kBFloat16);
    };
    const at::Tensor x = random_rows(grain, "x"), dy = random_rows(2 * grain, "dy");
    const at::Tensor y = fp8_grouped_gemm({.weight = weight, .rows = x, .matrices = weight.value, .offsets = offsets});
    const at::Tensor dx = fp8_grouped_gemm(
        {.weight = weight, .rows = dy, .matrices = weight.value, .offsets = offsets, .backward = true});
    at::Tensor dw = at::ones({3, 2 * grain, grain}, at::kFloat);
    fp8_grouped_weight_grad({.weight = weight, .dy = dy, .x = x, .offsets = offsets, .out = dw, .accumulate = true});
    at::Tensor fresh = at::ones_like(dw);
    fp8_grouped_weight_grad({.weight = weight, .dy = dy, .x = x, .offsets = offsets, .out = fresh});
    EXPECT_EQ(fresh[1].abs().max().item<float>(), 0) << "no rows, no gradient";
    EXPECT_LE(moe_difference(dw - 1, fresh), 1e-6);
    for (const std::int64_t expert : {0, 2}) {
      const std::int64_t first = offsets[static_cast<std::size_t>(expert)],
                         count = offsets[static_cast<std::size_t>(expert) + 1] - first;
      const at::Tensor mine = x.narrow(0, first, count), theirs = dy.narrow(0, first, count),
                       matrix = weight.value.select(0, expert);
      const at::Tensor exact_y = mine.to(at::kDouble).mm(matrix.to(at::kDouble).t()),
                       exact_dx = theirs.to(at::kDouble).mm(matrix.to(at::kDouble)),
                       exact_dw = theirs.to(at::kDouble).t().mm(mine.to(at::kDouble));
      for (const auto& [found, exact] :
           {std::pair{y.narrow(0, first, count), exact_y}, std::pair{dx.narrow(0, first, count), exact_dx},
            std::pair{fresh.select(0, expert), exact_dw}}) {
        const double apart = moe_difference(found, exact);
        EXPECT_LT(apart, 0.12) << expert;
        EXPECT_GT(apart, 1e-5) << "eight bits were not used";
      }
      // The same rows alone, in a call of their own.
      const std::vector<std::int64_t> alone{0, count};
      const at::Tensor again = fp8_grouped_gemm({.weight = weight,
                                                 .rows = mine.contiguous(),
                                                 .matrices = weight.value.narrow(0, expert, 1),
                                                 .offsets = alone});
      EXPECT_TRUE(at::equal(again, y.narrow(0, first, count)));
    }
  }
}

/// Noise, jitter and dropout inside experts have no simple oracle: the derivative of sum(y dy) + losses by differences.
TEST(MoeLayer, GradientsEqualFiniteDifferencesWithEverythingRandom) {
  const MoeCase cases[] = {
      {.name = "switch",
       .config = {.num_experts = 3,
                  .capacity_factor = 1.5,
                  .router = RouterKind::kSwitch,
                  .aux_loss_weight = 0.3,
                  .z_loss_weight = 0.1,
                  .jitter = 0.3,
                  .expert_dropout = 0.4}},
      {.name = "noisy",
       .config = {.num_experts = 4,
                  .top_k = 2,
                  .router = RouterKind::kNoisyTopK,
                  .importance_loss_weight = 0.3,
                  .load_loss_weight = 0.4,
                  .expert_dropout = 0.2}},
      {.name = "strict",
       .config = {.num_experts = 3, .top_k = 2, .router = RouterKind::kStrictBalance, .threshold_loss_weight = 0.3}}};
  for (const MoeCase& c : cases) {
    SCOPED_TRACE(c.name);
    const auto built = build_moe(c, Precision::kFp64);
    const MoeResult result = run_moe(*built->layer, built->params, c, 0, c.samples);
    at::Tensor x = moe_input(c, 0, c.samples);
    const at::Tensor dy = moe_input(c, 0, c.samples, "dy");
    const auto value = [&] {
      Context context = moe_context(c, 0, c.samples);
      const at::Tensor y = built->layer->forward(x, context, nullptr);
      return (y * dy).sum().item<double>() + context.sample_scale * weighted_sum(context.losses);
    };
    const auto compare = [&](at::Tensor values, const at::Tensor& gradient, const std::string& what) {
      double* at = values.mutable_data_ptr<double>();
      for (std::int64_t i = 0; i < values.numel(); i += 3) {
        const double before = at[i];
        at[i] = before + 1e-5;
        const double above = value();
        at[i] = before - 1e-5;
        const double below = value();
        at[i] = before;
        EXPECT_NEAR(gradient.view({-1})[i].item<double>(), (above - below) / 2e-5, 5e-7) << what << " " << i;
      }
    };
    compare(x, result.dx, "x");
    for (Param& param : built->params) compare(param.value, result.gradients.at(param.name), param.name);
  }
}

/// Samples over `ranks` data-parallel ranks, experts over the same ranks, against one rank with everything.
void expect_equal_to_one_rank(const MoeCase& c, int ranks, std::size_t passes) {
  const auto serial = build_moe(c, Precision::kFp64);
  const MoeResult all = run_moe(*serial->layer, serial->params, c, 0, c.samples);
  std::mutex mutex;
  std::vector<MoeResult> results(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    const auto built = build_moe(c, Precision::kFp64, &rank.world());
    const std::int64_t r = rank.world().rank(), first = r * c.samples / ranks, end = (r + 1) * c.samples / ranks;
    const MoeResult mine = run_moe(*built->layer, built->params, c, first, end - first);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(built->layer->passes(), passes);
    results[static_cast<std::size_t>(r)] = mine;
    if (mine.y.numel() > 0) {
      EXPECT_LE(moe_difference(mine.y, all.y.narrow(0, first, end - first)), 1e-13);
      EXPECT_LE(moe_difference(mine.dx, all.dx.narrow(0, first, end - first)), 1e-13);
    }
    const std::int64_t each = c.config.num_experts / ranks;
    for (const char* name : {"experts.in", "experts.out"}) {
      EXPECT_LE(moe_difference(mine.gradients.at(name), all.gradients.at(name).narrow(0, r * each, each)), 1e-13)
          << name << ": of all tokens, neither divided nor multiplied by ranks";
    }
  });
  at::Tensor router = at::zeros_like(all.gradients.at("router.weight"));
  double losses = 0;
  for (const MoeResult& one : results) {
    router += one.gradients.at("router.weight");
    losses += weighted_sum(one.losses);
  }
  EXPECT_LE(moe_difference(router, all.gradients.at("router.weight")), 1e-13);
  EXPECT_NEAR(losses, weighted_sum(all.losses), 1e-13);
}

TEST(ExpertParallel, EqualsOneRank) {
  for (const int ranks : {1, 2, 4}) {
    expect_equal_to_one_rank(
        {.name = "mixtral", .config = {.num_experts = 4, .top_k = 2, .aux_loss_weight = 0.3, .arena = 100}}, ranks, 1);
    expect_equal_to_one_rank(
        {.name = "fewer samples than ranks",
         .config =
             {.num_experts = 8, .top_k = 3, .router = RouterKind::kSigmoidTopK, .bias_update_rate = 1e-3, .arena = 100},
         .samples = 2},
        ranks, 1);
    expect_equal_to_one_rank({.name = "dropout travels with tokens",
                              .config = {.num_experts = 4, .top_k = 2, .expert_dropout = 0.4, .arena = 100}},
                             ranks, 1);
  }
}

/// All tokens choose experts 0 and 1, which one rank has: twice or four times its even share, in as many passes.
TEST(ExpertParallel, TakesFurtherPassesWhereRowsExceedTheArena) {
  MoeCase c{.name = "all to one rank", .config = {.num_experts = 4, .top_k = 2, .arena = 1}, .router_scale = 0};
  expect_equal_to_one_rank(c, 2, 2);
  c.config.arena = 1.5;
  expect_equal_to_one_rank(c, 2, 2);
  c.config.num_experts = 8;
  expect_equal_to_one_rank(c, 4, 4);
}

/// What a pass in parts tells others, in its order: where it could pause, and that a gradient is complete.
struct StopsAndGradients final : PassStops {
  void stop(Before next) override { events.push_back(fmt::format("stop {}", static_cast<int>(next))); }
  std::vector<std::string> events;
};

/// Gradients are reduced among ranks that share their experts with different others, and so take different numbers of
/// passes; between two stops the rank computes something else, which has calls of its own.
TEST(ExpertParallel, CompletesGradientsBetweenTheSameStopsHoweverManyPassesThereAre) {
  MoeCase c{.name = "all to one rank", .config = {.num_experts = 4, .top_k = 2, .num_shared_experts = 1}};
  std::vector<std::vector<std::string>> seen;
  for (const double arena : {1.0, 100.0}) {
    for (const double scale : {0.0, 1.0}) {
      c.config.arena = arena, c.router_scale = scale;
      comm::run_ranks(2, [&](comm::Rank& rank) {
        const auto built = build_moe(c, Precision::kFp64, &rank.world());
        StopsAndGradients stops;
        Context context = moe_context(c, 2 * rank.rank(), 2);
        context.stops = &stops;
        context.on_gradient = [&](Param& param) { stops.events.push_back(param.name); };
        Tape tape;
        built->layer->forward(moe_input(c, 2 * rank.rank(), 2), context, &tape);
        built->layer->backward(moe_input(c, 2 * rank.rank(), 2, "dy"), context, tape);
        if (rank.rank() != 0) return;
        if (scale == 0) {
          EXPECT_EQ(built->layer->passes(), arena == 1 ? 2U : 1U);
        }
        seen.push_back(stops.events);
      });
    }
  }
  for (const std::vector<std::string>& events : seen) EXPECT_EQ(events, seen.front());
  EXPECT_THAT(seen.front(), testing::IsSupersetOf({"experts.in", "experts.out", "router.weight", "stop 2"}));
}

/// Where a row's bits do not depend on the rows beside it (kernels/grouped_gemm.h) outputs have the same bits.
TEST(ExpertParallel, PassesChangeResultsByRoundingAtMost) {
  MoeCase c{.name = "uneven", .config = {.num_experts = 4, .top_k = 2}, .samples = 8, .length = 7};
  comm::run_ranks(2, [&](comm::Rank& rank) {
    std::vector<MoeResult> results;
    for (const double arena : {1.0, 100.0}) {
      MoeCase with = c;
      with.config.arena = arena;
      const auto built = build_moe(with, Precision::kFp32, &rank.world());
      results.push_back(run_moe(*built->layer, built->params, with, rank.world().rank() * 4, 4, at::kFloat));
      EXPECT_EQ(built->layer->passes() > 1, arena == 1);
    }
    EXPECT_LE(moe_difference(results[0].y, results[1].y), 1e-6);
    EXPECT_LE(moe_difference(results[0].dx, results[1].dx), 1e-6);
    if (instruction_set() < InstructionSet::kV4) return;
    EXPECT_TRUE(at::equal(results[0].y, results[1].y));
    EXPECT_TRUE(at::equal(results[0].dx, results[1].dx));
  });
}

/// Ranks share the tokens of each sample: routing, losses and gradients stay those of whole samples.
struct TokenShare {
  const char* name;
  int ranks;
  std::function<ParallelContext(comm::Group& world, comm::Group& inner, comm::Group& outer)> parallel;
};

void expect_equal_over_shared_tokens(const MoeCase& c, const TokenShare& share) {
  SCOPED_TRACE(c.name + std::string(" ") + share.name);
  const auto serial = build_moe(c, Precision::kFp64);
  const MoeResult all = run_moe(*serial->layer, serial->params, c, 0, c.samples);
  std::mutex mutex;
  std::map<std::string, at::Tensor> sums;
  comm::run_ranks(share.ranks, [&](comm::Rank& rank) {
    comm::Group& world = rank.world();
    const auto inner = world.split(world.rank() / 2, world.rank(), "inner");
    const auto outer = world.split(world.rank() % 2, world.rank(), "outer");
    const ParallelContext parallel = share.parallel(world, *inner, *outer);
    const auto built = build_moe(c, Precision::kFp64, nullptr, parallel);
    Context context = moe_context(c, 0, c.samples);
    std::vector<at::Tensor> ids{at::zeros({c.samples, c.length}, at::kLong)};
    take_tokens(ids, context, parallel.tokens);
    const auto mine = [&](const at::Tensor& whole) {
      at::Tensor part = parallel.tokens.ranks() > 1 ? take_tokens(whole, parallel.tokens.mine(c.length)) : whole;
      if (!parallel.splits_sequence()) return part;
      const std::int64_t each = part.size(1) / parallel.tensor_ranks();
      return part.narrow(1, each * parallel.tensor_rank(), each).contiguous();
    };
    Tape tape;
    const at::Tensor y = built->layer->forward(mine(moe_input(c, 0, c.samples)), context, &tape);
    const at::Tensor dx = built->layer->backward(mine(moe_input(c, 0, c.samples, "dy")), context, tape);
    const std::lock_guard lock(mutex);
    EXPECT_LE(moe_difference(y, mine(all.y)), 1e-13);
    EXPECT_LE(moe_difference(dx, mine(all.dx)), 1e-13);
    EXPECT_NEAR(weighted_sum(context.losses), weighted_sum(all.losses), 1e-13) << "of whole samples, on every rank";
    EXPECT_EQ(built->balance.begin()->counts, serial->balance.begin()->counts);
    for (Param& param : built->params) {
      at::Tensor& sum = sums[param.name];
      sum = sum.defined() ? sum + param.gradient : param.gradient.clone();
    }
  });
  for (const auto& [name, gradient] : all.gradients) {
    // Each rank has the whole gradient of what is learned beside the logits.
    const double copies = name == "router.thresholds" ? share.ranks : 1;
    EXPECT_LE(moe_difference(sums.at(name), gradient * copies), 1e-13) << name;
  }
}

TEST(SharedTokens, ChangeNothing) {
  const TokenShare shares[] = {
      {"ring", 2,
       [](comm::Group& world, comm::Group&, comm::Group&) {
         return ParallelContext{.tokens = {.outer = 2, .outer_rank = world.rank(), .zigzag = true}, .ring = &world};
       }},
      {"ulysses", 2,
       [](comm::Group& world, comm::Group&, comm::Group&) {
         return ParallelContext{.tokens = {.inner = 2, .inner_rank = world.rank()}, .heads = &world};
       }},
      {"both", 4,
       [](comm::Group&, comm::Group& inner, comm::Group& outer) {
         return ParallelContext{
             .tokens = {.outer = 2, .outer_rank = outer.rank(), .inner = 2, .inner_rank = inner.rank(), .zigzag = true},
             .ring = &outer,
             .heads = &inner};
       }},
      {"sequence parallel", 2,
       [](comm::Group& world, comm::Group&, comm::Group&) {
         return ParallelContext{.tensor = &world, .sequence_parallel = true};
       }},
      {"sequence and context parallel", 4,
       [](comm::Group&, comm::Group& inner, comm::Group& outer) {
         return ParallelContext{.tensor = &inner,
                                .sequence_parallel = true,
                                .tokens = {.outer = 2, .outer_rank = outer.rank(), .zigzag = true},
                                .ring = &outer};
       }},
  };
  const MoeCase cases[] = {
      {.name = "mixtral",
       .config = {.num_experts = 5, .top_k = 2, .aux_loss_weight = 0.3, .z_loss_weight = 0.1, .balance_group = 2},
       .length = 8},
      {.name = "gshard",
       .config =
           {.num_experts = 3, .top_k = 2, .capacity_factor = 0.8, .router = RouterKind::kGshard, .aux_loss_weight = 2},
       .length = 8},
      {.name = "noisy",
       .config = {.num_experts = 4,
                  .top_k = 2,
                  .router = RouterKind::kNoisyTopK,
                  .importance_loss_weight = 0.3,
                  .load_loss_weight = 0.4,
                  .jitter = 0.2,
                  .expert_dropout = 0.2},
       .length = 8},
      {.name = "strict",
       .config = {.num_experts = 4, .top_k = 2, .router = RouterKind::kStrictBalance, .threshold_loss_weight = 0.3},
       .length = 8},
  };
  for (const TokenShare& share : shares) {
    for (const MoeCase& c : cases) expect_equal_over_shared_tokens(c, share);
  }
}

TEST(MoeLayer, EvaluatesWithoutNumbersOfSamplesAndDropsThereToo) {
  MoeCase c{.name = "capacity", .config = {.num_experts = 3, .capacity_factor = 0.5, .router = RouterKind::kSwitch}};
  c.training = false;
  const auto built = build_moe(c, Precision::kFp64);
  Context context = moe_context(c, 0, c.samples);
  context.samples = at::Tensor();
  const at::Tensor limited = built->layer->forward(moe_input(c, 0, c.samples), context, nullptr);
  EXPECT_GT((limited.abs().sum(-1) == 0).sum().item<std::int64_t>(), 0) << "dropped tokens get nothing";
}

TEST(MoeLayer, RefusesAMicroBatchWithoutWholeGroups) {
  const MoeCase c{.name = "groups", .config = {.num_experts = 3, .balance_group = 4}, .samples = 6};
  const auto built = build_moe(c, Precision::kFp64);
  Context context = moe_context(c, 0, 6);
  EXPECT_THAT(words_of([&] { built->layer->forward(moe_input(c, 0, 6), context, nullptr); }),
              HasSubstr("experts.balance_group is 4"));
  Context shifted = moe_context(c, 2, 4);
  EXPECT_THAT(words_of([&] { built->layer->forward(moe_input(c, 2, 4), shifted, nullptr); }),
              HasSubstr("samples 2 to 5"));
}

TEST(Balance, MovesBiasesOncePerStepAndKeepsThemInTheState) {
  const MoeCase c{
      .name = "bias",
      .config = {.num_experts = 4, .top_k = 1, .router = RouterKind::kSigmoidTopK, .bias_update_rate = 0.5}};
  const auto built = build_moe(c, Precision::kFp64);
  State state;
  built->balance.add_state(state);
  const at::Tensor bias = state.at("router_bias/mlp").tensor, before = bias.clone();
  for (int micro = 0; micro < 3; ++micro) run_moe(*built->layer, built->params, c, 4 * micro, 4);
  Context evaluated = moe_context(c, 0, 4);
  built->layer->forward(moe_input(c, 0, 4), evaluated, nullptr);
  const std::vector<std::int64_t> counts = built->balance.begin()->counts;
  EXPECT_EQ(counts[0] + counts[1] + counts[2] + counts[3], 3 * 4 * 3) << "evaluation counts nothing";
  EXPECT_TRUE(at::equal(bias, before)) << "nothing moves within a step";
  built->balance.advance(/*taken=*/false);
  EXPECT_TRUE(at::equal(bias, before)) << "a skipped step moves nothing";
  for (int micro = 0; micro < 3; ++micro) run_moe(*built->layer, built->params, c, 4 * micro, 4);
  built->balance.advance(true);
  std::vector<float> expected(before.data_ptr<float>(), before.data_ptr<float>() + 4);
  update_bias(expected, counts, 0.5, false);
  EXPECT_TRUE(at::equal(bias, at::tensor(at::ArrayRef<float>(expected))));
  EXPECT_EQ(built->balance.begin()->last, counts);
  EXPECT_EQ(built->balance.begin()->counts, std::vector<std::int64_t>(4, 0));
}

}  // namespace
}  // namespace trireme::nn::moe
