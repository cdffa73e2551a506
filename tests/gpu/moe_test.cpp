// Mixtures of experts on a GPU beside the CPU: the layer with every router, models through the trainer, CUDA graphs.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <numeric>

#include "tests/gpu/support.h"
#include "tests/nn/moe/moe_cases.h"
#include "tests/train/support.h"
#include "trireme/kernels/expert_ops.h"
#include "trireme/kernels/grouped_gemm.h"

namespace trireme::gpu {
namespace {

using nn::Precision;
using nn::moe::MoeCase;
using spec::RouterKind;

struct MoeLayerRun {
  at::Tensor y, dx;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, double> losses;
  std::vector<std::int64_t> loads;
};

/// Two micro-batches, of all samples each: gradients are begun and added to.
MoeLayerRun run_moe_layer(const MoeCase& c, Precision precision, at::Device device) {
  const auto built = nn::moe::build_moe(c, precision, nullptr, nn::single_rank(), device);
  const at::ScalarType type = nn::compute_type(precision);
  MoeLayerRun out;
  for (int micro = 0; micro < 2; ++micro) {
    nn::Context context = nn::moe::moe_context(c, 0, c.samples);
    context.samples = context.samples.to(device);
    nn::Tape tape;
    const auto input = [&](const char* name) {
      return nn::moe::moe_input(c, micro * c.samples, c.samples, name).to(type).to(device);
    };
    nn::Layer& layer = *built->layer;
    out.y = layer.forward({input("x")}, context, &tape)[0].cpu();
    out.dx = layer.backward({input("dy")}, context, tape)[0].cpu();
    nn::settle(context.losses);
    for (const nn::LossTerm& term : context.losses) out.losses[term.name] += term.sum;
  }
  for (nn::Param& param : built->params) out.gradients[param.name] = param.gradient.cpu();
  built->balance.advance(/*taken=*/true);
  out.loads.assign(built->balance.loads(0).begin(), built->balance.loads(0).end());
  return out;
}

double moe_apart(const at::Tensor& ours, const at::Tensor& theirs) {
  const at::Tensor exact = theirs.to(at::kDouble);
  return (ours.to(at::kDouble) - exact).norm().item<double>() / std::max(exact.norm().item<double>(), 1e-12);
}

void expect_same_moe(const MoeCase& c, Precision precision, double near) {
  SCOPED_TRACE(c.name);
  const MoeLayerRun cpu = run_moe_layer(c, precision, at::kCPU), there = run_moe_layer(c, precision, gpu());
  EXPECT_LE(moe_apart(there.y, cpu.y), near);
  EXPECT_LE(moe_apart(there.dx, cpu.dx), near);
  for (const auto& [name, gradient] : cpu.gradients)
    EXPECT_LE(moe_apart(there.gradients.at(name), gradient), near) << name;
  ASSERT_EQ(there.losses.size(), cpu.losses.size());
  for (const auto& [name, sum] : cpu.losses)
    EXPECT_NEAR(there.losses.at(name), sum, near * (1 + std::abs(sum))) << name;
  EXPECT_EQ(there.loads, cpu.loads);
}

std::vector<MoeCase> moe_cases_of(std::int64_t hidden, std::int64_t inner) {
  std::vector<MoeCase> cases;
  const auto add = [&](const char* name, spec::Experts config, bool gated = true) {
    cases.push_back(
        {.name = name, .config = config, .samples = 4, .length = 37, .gated = gated, .hidden = hidden, .inner = inner});
  };
  add("mixtral", {.num_experts = 8, .top_k = 2, .aux_loss_weight = 0.02});
  add("all experts, no gate projection", {.num_experts = 5, .top_k = 5, .z_loss_weight = 0.01}, /*gated=*/false);
  add("qwen", {.num_experts = 6,
               .top_k = 3,
               .num_shared_experts = 2,
               .norm_topk_prob = false,
               .shared_expert_gate = true,
               .aux_loss_weight = 0.05,
               .z_loss_weight = 0.03,
               .balance_group = 2});
  spec::Experts deepseek{.num_experts = 64,
                         .top_k = 6,
                         .num_shared_experts = 1,
                         .router = RouterKind::kSigmoidTopK,
                         .routed_scaling_factor = 2.5,
                         .aux_loss_weight = 0.02,
                         .bias_update_rate = 0.01};
  add("deepseek", deepseek);
  deepseek.num_groups = 8, deepseek.top_k_groups = 3;
  add("deepseek by groups", deepseek);
  deepseek.group_score = spec::GroupScore::kTopK, deepseek.norm_topk_prob = false, deepseek.num_shared_experts = 0;
  add("groups by top k", deepseek);
  deepseek.group_score = spec::GroupScore::kMax;
  add("groups by the best", deepseek);
  return cases;
}

TEST(GpuExperts, LayersGiveWhatTheCpuGives) {
  for (const MoeCase& c : moe_cases_of(24, 20)) expect_same_moe(c, Precision::kFp64, 1e-11);
  for (const MoeCase& c : moe_cases_of(7, 5)) expect_same_moe(c, Precision::kFp64, 1e-11);
  for (const MoeCase& c : moe_cases_of(24, 16)) expect_same_moe(c, Precision::kFp32, 2e-5);
}

/// Grouped GEMMs of bfloat16 read where groups end from the GPU.
TEST(GpuExperts, LayersOfBf16GiveWhatTheCpuGives) {
  for (const MoeCase& c : moe_cases_of(64, 32)) expect_same_moe(c, Precision::kBf16, 0.02);
  for (const MoeCase& c : moe_cases_of(33, 20)) expect_same_moe(c, Precision::kBf16, 0.02);
}

/// All logits are equal: ties go to the lowest numbers, and most experts get nothing.
TEST(GpuExperts, TiesGoToTheLowestNumbersAndEmptyExpertsGetNoGradient) {
  for (MoeCase c : moe_cases_of(64, 32)) {
    c.router_scale = 0;
    expect_same_moe(c, Precision::kFp64, 1e-11);
    expect_same_moe(c, Precision::kBf16, 0.02);
  }
}

TEST(GpuExperts, RoutersOfTheHostRunToo) {
  const auto with = [](const char* name, spec::Experts config) {
    expect_same_moe({.name = name, .config = config, .samples = 4, .length = 9, .hidden = 24, .inner = 16},
                    Precision::kFp64, 1e-11);
  };
  with("capacity", {.num_experts = 4, .top_k = 2, .capacity_factor = 0.8, .aux_loss_weight = 0.1});
  with("switch", {.num_experts = 4,
                  .top_k = 1,
                  .capacity_factor = 1.0,
                  .router = RouterKind::kSwitch,
                  .aux_loss_weight = 0.1,
                  .jitter = 0.05});
  with("gshard", {.num_experts = 4, .top_k = 2, .capacity_factor = 1.0, .router = RouterKind::kGshard});
  with("noisy", {.num_experts = 4,
                 .top_k = 2,
                 .router = RouterKind::kNoisyTopK,
                 .importance_loss_weight = 0.1,
                 .load_loss_weight = 0.1});
  with("strict", {.num_experts = 4, .top_k = 2, .router = RouterKind::kStrictBalance, .threshold_loss_weight = 0.1});
  with("expert choice", {.num_experts = 4, .top_k = 2, .router = RouterKind::kExpertChoice});
  expect_same_moe({.name = "rows in FP8",
                   .config = {.num_experts = 4, .top_k = 2, .dispatch_precision = spec::DispatchPrecision::kFp8},
                   .samples = 4,
                   .length = 9,
                   .hidden = 128,
                   .inner = 16},
                  Precision::kFp64, 1e-11);
}

TEST(GpuExperts, PermuteAndCombineMoveEveryRow) {
  for_every_type([](const Near& near) {
    for (const std::int64_t width : {8, 13, 512, 1536}) {
      const std::int64_t tokens = 300, experts = 9, k = 4;
      const at::Tensor logits = normal_tensor({tokens, experts}, at::kFloat, "logits").to(gpu());
      const auto routing =
          kernels::route_experts(logits, {}, {.top_k = k, .group_tokens = tokens, .sample_tokens = tokens});
      const at::Tensor x = normal_tensor({tokens, width}, near.type, "x");
      const at::Tensor rows = kernels::permute_rows(x.to(gpu()), routing.row_of);
      const at::Tensor order = routing.row_of.cpu().view({-1}).to(at::kLong);
      EXPECT_TRUE(at::equal(std::get<0>(order.sort()), at::arange(tokens * k, at::kLong)));
      EXPECT_TRUE(at::equal(rows.cpu().index_select(0, order), x.repeat_interleave(k, 0)));
      const at::Tensor add = normal_tensor({tokens, width}, near.type, "add");
      const at::Tensor sum =
          kernels::combine_rows(rows, routing.row_of, add.to(gpu()), add.to(sums_type(near.type)).to(gpu()));
      expect_near({x.to(at::kDouble) * 4 + add.to(at::kDouble) * 2, sum}, near, "combine");
      // Rows of an expert stand in the order of tokens.
      const at::Tensor ends = routing.ends.cpu(), chosen = routing.chosen.cpu();
      EXPECT_EQ(ends[experts - 1].item<int>(), tokens * k);
      std::int64_t last = -1, expert = 0;
      const at::Tensor place = order.argsort();
      for (std::int64_t row = 0; row < tokens * k; ++row) {
        while (row == ends[expert].item<int>()) ++expert, last = -1;
        const auto choice = place[row].item<std::int64_t>();
        ASSERT_EQ(chosen[choice / k][choice % k].item<int>(), expert);
        ASSERT_GT(choice / k, last);
        last = choice / k;
      }
    }
  });
}

struct GroupedCase {
  std::vector<std::int64_t> counts;
  std::int64_t m = 64, n = 64;
  std::string text() const { return fmt::format("{} groups, {} x {}", counts.size(), m, n); }
  std::int64_t rows() const { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }
  at::Tensor ends() const {
    std::vector<int> ends;
    int sum = 0;
    for (const std::int64_t count : counts) ends.push_back(sum += static_cast<int>(count));
    return at::tensor(ends).to(gpu());
  }
};

/// Empty groups, one row, one more than a tile, all rows in one, and widths that fill no tile.
std::vector<GroupedCase> grouped_cases() {
  std::vector<std::int64_t> many(64, 0);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>((i * 37) % 90);
  return {{.counts = {0, 1, 64, 65, 0, 129}, .m = 128, .n = 256},
          {.counts = {300, 0, 0}, .m = 264, .n = 136},
          {.counts = {0, 0, 511}, .m = 8, .n = 520},
          {.counts = {16, 16}, .m = 64, .n = 8},
          {.counts = many, .m = 320, .n = 192},
          {.counts = {700, 900, 40, 1200}, .m = 896, .n = 640}};
}

at::Tensor bf16_here(at::IntArrayRef sizes, const char* name) {
  return normal_tensor(sizes, at::kBFloat16, name).to(gpu());
}

TEST(GpuExperts, WeightGradientsOfUnevenGroupsAreSumsInFloat) {
  for (const GroupedCase& c : grouped_cases()) {
    SCOPED_TRACE(c.text());
    const std::int64_t groups = static_cast<std::int64_t>(c.counts.size());
    const at::Tensor ends = c.ends(), a = bf16_here({c.rows(), c.m}, "a"), b = bf16_here({c.rows(), c.n}, "b");
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor old = normal_tensor({groups, c.m, c.n}, type, "old").to(gpu());
      for (const bool accumulate : {false, true}) {
        for (const bool own : {true, false}) {
          at::Tensor sums = accumulate ? old.clone() : at::full_like(old, NAN);
          kernels::grouped_weight_grad(
              {.a = a, .b = b, .out = sums, .accumulate = accumulate, .ends = ends, .own_kernel = own});
          std::int64_t first = 0;
          for (std::int64_t g = 0; g < groups; ++g) {
            const std::int64_t count = c.counts[static_cast<std::size_t>(g)];
            at::Tensor exact =
                at::matmul(a.narrow(0, first, count).to(at::kDouble).t(), b.narrow(0, first, count).to(at::kDouble));
            if (accumulate) exact += old.select(0, g).to(at::kDouble);
            EXPECT_LE(moe_apart(sums.select(0, g).cpu(), exact.cpu()), own && type == at::kFloat ? 2e-6 : 6e-3)
                << "group " << g << (accumulate ? ", added" : "") << (own ? ", own kernel" : "");
            first += count;
          }
        }
      }
    }
  }
}

/// What a tile reads past the end of a group is not of that group.
TEST(GpuExperts, InfinitiesStayInTheirGroup) {
  const at::Tensor ends = at::tensor(std::vector<int>{40, 90, 100}).to(gpu());
  const at::Tensor a = bf16_here({100, 64}, "a"), b = bf16_here({100, 72}, "b");
  a.narrow(0, 40, 50).fill_(INFINITY);
  at::Tensor out = at::empty({3, 64, 72}, a.options().dtype(at::kFloat));
  kernels::grouped_weight_grad({.a = a, .b = b, .out = out, .ends = ends, .own_kernel = true});
  EXPECT_TRUE(out.select(0, 0).isfinite().all().item<bool>());
  EXPECT_TRUE(out.select(0, 2).isfinite().all().item<bool>());
}

spec::Recipe recipe_with_experts(spec::Family family, Precision precision) {
  spec::Recipe recipe = train::small_recipe(family, precision);
  recipe.model.hidden_size = 32;
  recipe.model.num_layers = 3;
  recipe.model.experts = {.num_experts = 8, .top_k = 2, .ffn_size = 16, .aux_loss_weight = 0.01};
  if (family == spec::Family::kDeepseekV3) {
    recipe.model.mtp_depth = 1;
    recipe.model.mla = {.q_lora_rank = 16, .kv_lora_rank = 16, .qk_rope_head_dim = 8, .v_head_dim = 8};
    recipe.model.experts.num_shared_experts = 1;
    recipe.model.experts.first_dense_layers = 1;
    recipe.model.experts.router = RouterKind::kSigmoidTopK;
    recipe.model.experts.num_groups = 4;
    recipe.model.experts.top_k_groups = 2;
    recipe.model.experts.bias_update_rate = 0.01;
  }
  recipe.train.micro_batch_size = 2;
  recipe.batch.global_batch_tokens = 4 * 12;
  return recipe;
}

struct MoeCourse {
  std::vector<double> losses, norms;
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> loads;  ///< of the last step's layers, by expert
};
MoeCourse moe_course(const spec::Recipe& recipe, int ranks = 1) {
  MoeCourse course;
  train::with_trainers(recipe, ranks, [&](train::Trainer& trainer, comm::Rank& rank) {
    for (int step = 0; step < 6; ++step) {
      const train::StepReport report = trainer.step();
      if (rank.world().rank() != 0) continue;
      course.losses.push_back(report.loss);
      course.norms.push_back(report.gradient_norm);
      course.loads.clear();
      for (const nn::moe::LayerLoads& layer : report.loads) course.loads.emplace_back(layer.layer, layer.counts);
    }
  });
  return course;
}

TEST(GpuExperts, ModelsTrainAsOnTheCpu) {
  for (const auto family : {spec::Family::kMistral, spec::Family::kDeepseekV3}) {
    SCOPED_TRACE(static_cast<int>(family));
    spec::Recipe recipe = recipe_with_experts(family, Precision::kFp64);
    const MoeCourse cpu = moe_course(recipe);
    recipe.run.device = spec::DeviceKind::kCuda;
    const MoeCourse there = moe_course(recipe);
    ASSERT_EQ(there.losses.size(), cpu.losses.size());
    for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
      EXPECT_NEAR(there.losses[i], cpu.losses[i], 1e-9);
      EXPECT_NEAR(there.norms[i], cpu.norms[i], 1e-8);
    }
    EXPECT_EQ(there.loads, cpu.loads);
    recipe.train.recompute = spec::RecomputeKind::kFull;
    EXPECT_NEAR(moe_course(recipe).losses.back(), cpu.losses.back(), 1e-9);
  }
}

/// Ranks that share the GPU: copies of experts, experts sharded, samples shared.
TEST(GpuExperts, LayoutsTrainAsOneRank) {
  spec::Recipe recipe = recipe_with_experts(spec::Family::kDeepseekV3, Precision::kFp64);
  const MoeCourse cpu = moe_course(recipe);
  recipe.run.device = spec::DeviceKind::kCuda;
  const auto with = [&](const char* name, const auto& change) {
    SCOPED_TRACE(name);
    spec::Recipe layout = recipe;
    change(layout.layout);
    const MoeCourse there = moe_course(layout, 2);
    EXPECT_NEAR(there.losses.back(), cpu.losses.back(), 1e-9);
    EXPECT_EQ(there.loads, cpu.loads);
  };
  with("dp", [](spec::LayoutConfig& l) { l.dp = 2; });
  with("zero 3", [](spec::LayoutConfig& l) { l.dp = 2, l.zero = 3; });
  with("ep", [](spec::LayoutConfig& l) { l.dp = 2, l.ep = 2; });
  with("tp", [](spec::LayoutConfig& l) { l.tp = 2; });
}

TEST(GpuExperts, ReplayedStepsHaveTheBitsOfPlainOnes) {
  for (const auto family : {spec::Family::kMistral, spec::Family::kDeepseekV3}) {
    SCOPED_TRACE(static_cast<int>(family));
    spec::Recipe recipe = recipe_with_experts(family, Precision::kBf16);
    recipe.run.device = spec::DeviceKind::kCuda;
    recipe.precision.deterministic_attention = true;
    const MoeCourse plain = moe_course(recipe);
    recipe.train.cuda_graphs = true;
    const MoeCourse replayed = moe_course(recipe);
    EXPECT_EQ(replayed.losses, plain.losses);
    EXPECT_EQ(replayed.norms, plain.norms);
    EXPECT_EQ(replayed.loads, plain.loads);
    recipe.precision.deterministic_attention = false;  // cuDNN's, which adds up in any order
    const MoeCourse any_order = moe_course(recipe);
    for (std::size_t i = 0; i < plain.losses.size(); ++i) EXPECT_NEAR(any_order.losses[i], plain.losses[i], 0.03);
    recipe.run.device = spec::DeviceKind::kCpu;
    recipe.train.cuda_graphs = false;
    const MoeCourse cpu = moe_course(recipe);
    for (std::size_t i = 0; i < cpu.losses.size(); ++i) EXPECT_NEAR(plain.losses[i], cpu.losses[i], 0.03);
  }
}

}  // namespace
}  // namespace trireme::gpu
