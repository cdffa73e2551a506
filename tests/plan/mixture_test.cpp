// Mixtures of experts in the planner: the ready recipes, what they count and what they cost.
#include <gtest/gtest.h>

#include "trireme/base/data_files.h"
#include "trireme/plan/check_recipe.h"
#include "trireme/plan/search.h"
#include "trireme/spec/recipe.h"

namespace trireme::plan {
namespace {

spec::Recipe load_mixture(const std::string& name) {
  return spec::load_recipe({.file = find_data_file("mixtures", name).string()}).value;
}

Job job_of(const std::string& name, std::int64_t length, std::int64_t batch) {
  Job job;
  job.shape = *spec::shape_of(load_mixture(name).model);
  job.seq_len = length;
  job.batch = batch;
  return job;
}

TEST(Mixtures, HaveThePublishedNumbersOfParameters) {
  struct Row {
    const char* name;
    double total, within, active, active_within;
  };
  for (const Row& row :
       {Row{"mixtral-8x7b", 46'702'792'704, 1, 12.88e9, 0.05e9},
        Row{"mixtral-8x22b", 140'620'634'112, 1, 39.15e9, 0.1e9},
        Row{"qwen3-30b-a3b", 30'532'122'624, 1, 3.35e9, 0.05e9}, Row{"qwen2-57b-a14b", 57.41e9, 0.01e9, 14.2e9, 0.1e9},
        // 671B with 37B active; the weights that were released have 671,026,419,200 with a bias of 256
        // for the router of each of 58 layers.
        Row{"deepseek-v3", 671'026'419'200 - 58 * 256, 1, 37.55e9, 0.6e9}, Row{"switch-c", 1571e9, 5e9, 0, 0},
        Row{"switch-base", 7.4e9, 0.1e9, 0, 0},
        // The paper rounds to 600B; its 37B, 150B and 200B are as much below the exact counts.
        Row{"gshard-600b", 600e9, 25e9, 0, 0}}) {
    const spec::Recipe recipe = load_mixture(row.name);
    EXPECT_EQ(recipe.run.name, row.name);
    const spec::ParameterCount count = spec::count_parameters(*spec::shape_of(recipe.model));
    EXPECT_NEAR(static_cast<double>(count.total()), row.total, row.within) << row.name;
    if (row.active > 0) {
      EXPECT_NEAR(static_cast<double>(count.active()), row.active, row.active_within) << row.name;
    }
  }
}

TEST(Mixtures, AllHaveACountHere) { EXPECT_EQ(data_names("mixtures").size(), 8); }

/// README_WEIGHTS.md of the released weights: 11.5B of its own, embedding and head shared.
TEST(Mixtures, CountTheExpertsOfMultiTokenPrediction) {
  spec::ModelShape shape = *spec::shape_of(load_mixture("deepseek-v3").model);
  shape.mtp_depth = 1;
  const spec::ParameterCount count = spec::count_parameters(shape);
  EXPECT_NEAR(static_cast<double>(count.mtp), 11.5e9, 0.15e9);
  EXPECT_EQ(count.mtp_experts, std::int64_t{256} * 3 * 7168 * 2048);
}

TEST(Mixture, OfOneExpertIsTheDenseModelAndARouter) {
  const spec::ModelShape shape = spec::family_shape(spec::Family::kLlama);
  spec::ModelShape one = shape;
  one.experts = {.num_experts = 1, .top_k = 1};
  const std::int64_t router = shape.num_layers * shape.hidden_size;
  EXPECT_EQ(spec::count_parameters(one).total(), spec::count_parameters(shape).total() + router);
  EXPECT_DOUBLE_EQ(spec::count_flops(one, 100).projections,
                   spec::count_flops(shape, 100).projections + 2 * 100 * static_cast<double>(router));
}

TEST(Mixture, FlopsAreTwiceTheActiveWeightsForEachToken) {
  for (const char* name : {"mixtral-8x7b", "deepseek-v3"}) {
    const Job job = job_of(name, 1024, 1);
    const spec::ParameterCount count = spec::count_parameters(job.shape);
    const SequenceFlops flops = sequence_flops(job.shape, job.seq_len);
    const auto met = static_cast<double>(count.layers - count.experts + count.active_experts);
    // All matrices that a token meets; embedding and norms are none of them.
    EXPECT_NEAR(flops.projections, 2 * 1024 * met, 1e-4 * flops.projections) << name;
  }
}

/// Eight choices over eight nodes meet 5.25 of them, four where groups limit them; eight bits halve what goes out.
TEST(Mixture, DispatchByNodesAndInEightBitsCostsLess) {
  const cost::Hardware hardware = cost::load_hardware("dgx-h100");
  Job job = job_of("deepseek-v3", 4096, 4096);
  const ParallelConfig layout{.layout = {.dp = 64, .ep = 64, .zero = 1}, .recompute = spec::RecomputeKind::kFull};
  const auto seconds = [&] { return estimate(hardware, job, layout).time.work.communication; };
  job.shape.experts.num_groups = job.shape.experts.top_k_groups = 1;
  const double flat = seconds();
  job.shape.experts.node_ranks = 8;
  const double by_nodes = seconds();
  EXPECT_LT(by_nodes, 0.9 * flat);
  job.shape.experts.num_groups = 8, job.shape.experts.top_k_groups = 4;  // groups are nodes
  EXPECT_LT(seconds(), by_nodes);
  job.shape.experts.node_ranks = 0;
  EXPECT_DOUBLE_EQ(seconds(), flat);
  job.shape.experts.dispatch_precision = spec::DispatchPrecision::kFp8;
  EXPECT_LT(seconds(), 0.8 * flat);
}

TEST(Mixture, ExpertsAreSharedOutAndPaidForInMessages) {
  const cost::Hardware hardware = cost::load_hardware("dgx-h100");
  const Job job = job_of("mixtral-8x7b", 4096, 256);
  ParallelConfig layout{.layout = {.dp = 64, .zero = 1}, .recompute = spec::RecomputeKind::kFull};
  const Estimate whole = estimate(hardware, job, layout);
  layout.layout.ep = 8;
  const Estimate shared = estimate(hardware, job, layout);
  const auto experts = static_cast<double>(spec::count_parameters(job.shape).experts);
  EXPECT_NEAR(whole.memory.parts.weights - shared.memory.parts.weights, 2 * experts * 7 / 8, 1e6);
  EXPECT_EQ(whole.time.work.communication, 0);
  EXPECT_GT(shared.time.work.communication, 0);
  // Fewer, larger GEMMs: each weight is read for eight times the tokens.
  EXPECT_LT(shared.time.work.matmul, whole.time.work.matmul);
}

TEST(Mixture, SearchFindsAWayToShareThemOut) {
  const cost::Hardware hardware = cost::load_hardware("dgx-h100");
  const SearchResult found = search(hardware, job_of("mixtral-8x7b", 4096, 512), 64, {.top = 1, .replay = false});
  ASSERT_FALSE(found.best.empty());
  EXPECT_GT(found.best.front().config.layout.ep, 1);
  EXPECT_TRUE(found.best.front().memory.fits);
}

TEST(Mixture, LayoutsThatCannotShareThemOutSayWhatCan) {
  const Job job = job_of("mixtral-8x7b", 4096, 48);
  const auto problems = find_problems(job, {.layout = {.dp = 12, .ep = 8}}, 12);
  ASSERT_EQ(problems.size(), 1);
  EXPECT_EQ(problems[0].hint, "use --ep 4");
  EXPECT_TRUE(find_problems(job, {.layout = {.dp = 12, .ep = 4}}, 12).empty());
}

/// DeepSeek-V3 (2412.19437): 180K H800 hours for a trillion tokens on 2,048 devices, with pp 16, ep 64, ZeRO-1 and fp8;
/// it recomputed norms, up-projections of latents and activations. Without any recomputation we predict a quarter less,
/// with that of whole layers as much.
TEST(Mixture, DeepSeekV3CostsWhatWasReported) {
  Job job = job_of("deepseek-v3", 4096, 15360);
  job.precision = precision_of(cost::Arithmetic::kFp8);
  ParallelConfig layout{.layout = {.dp = 128, .pp = 16, .ep = 64, .zero = 1},
                        .pipeline = {.schedule = "dualpipe", .virtual_stages = 2}};
  const auto hours = [&](Pipeline pipeline) {
    const Estimate found = estimate(cost::load_hardware("deepseek-h800"), job, layout, pipeline);
    return 1e12 / job.tokens() * found.step_seconds() * 2048 / 3600;
  };
  EXPECT_NEAR(hours(Pipeline::kClosedForm), 180e3, 0.25 * 180e3);
  layout.recompute = spec::RecomputeKind::kFull;
  EXPECT_NEAR(hours(Pipeline::kReplay), 180e3, 0.05 * 180e3);
}

/// Steps of our own on one H200 (docs/performance.md), of the recipe or of the sizes that bench/experts_torch has. The
/// device's constants are those of large published runs, which reach less of it: predictions are above what is
/// measured, by up to 30 %.
TEST(Mixture, OurOwnRunsTakeNotMuchLessThanPredicted) {
  struct OwnRun {
    const char* recipe;
    std::vector<std::string> sets;
    double seconds, memory_gib;
  };
  const std::vector<std::string> large{"data.seq_len=2048",        "model.max_seq_len=2048",
                                       "model.vocab_size=32000",   "batch.global_batch_tokens=16384",
                                       "train.micro_batch_size=8", "precision.gradients=bf16",
                                       "model.head_dim=128"};
  const OwnRun runs[] = {
      {"mixtral-100m", {}, 16384 / 1.26e6, 3.82},
      {"deepseek-100m", {}, 16384 / 0.88e6, 4.37},
      {"mixtral-100m",
       {"model.num_layers=8", "model.hidden_size=1536", "model.num_heads=12", "model.num_kv_heads=4",
        "model.ffn_size=5376", "experts.num_experts=8", "experts.top_k=2"},
       0.1121,
       34.8},
      {"deepseek-100m",
       {"model.num_layers=12", "model.hidden_size=1280", "model.num_heads=16", "model.num_kv_heads=16",
        "model.ffn_size=7168", "model.mtp_depth=0", "model.mla.q_lora_rank=768", "model.mla.kv_lora_rank=512",
        "model.mla.qk_rope_head_dim=64", "model.mla.v_head_dim=128", "experts.num_experts=64", "experts.top_k=6",
        "experts.ffn_size=896", "experts.num_shared_experts=2", "experts.num_groups=1", "experts.top_k_groups=1"},
       0.1455,
       53.5}};
  const std::filesystem::path recipes = find_data_file("mixtures", "deepseek-v3").parent_path().parent_path();
  for (const OwnRun& run : runs) {
    SCOPED_TRACE(std::string(run.recipe) + (run.sets.empty() ? "" : ", large"));
    config::Input load{.file = (recipes / (std::string(run.recipe) + ".toml")).string()};
    load.sets = run.sets;
    if (!run.sets.empty()) load.sets.insert(load.sets.end(), large.begin(), large.end());
    const Checkup checkup =
        check_recipe(spec::load_recipe(load).value, {.ranks = 1, .hardware = cost::load_hardware("h200")});
    ASSERT_TRUE(checkup.estimate.has_value());
    const double seconds = checkup.estimate->step_seconds() / run.seconds,
                 memory = checkup.estimate->memory.peak() / (run.memory_gib * 1024 * 1024 * 1024);
    EXPECT_GT(seconds, 1) << seconds;
    EXPECT_LT(seconds, 1.3) << seconds;
    EXPECT_GT(memory, 1) << memory;
    EXPECT_LT(memory, 1.3) << memory;
  }
}

TEST(Offload, MovesStatesToTheHostAndTakesTheLinksTime) {
  const cost::Hardware hardware = cost::load_hardware("dgx-a100-40");
  Job job;
  job.shape = spec::family_shape(spec::Family::kLlama);
  job.seq_len = 2048;
  job.batch = 8;
  ParallelConfig layout{.layout = {.dp = 8, .zero = 2}, .recompute = spec::RecomputeKind::kFull};
  const Estimate here = estimate(hardware, job, layout);
  layout.layout.offload = spec::OffloadKind::kOptimizer;
  const Estimate there = estimate(hardware, job, layout);
  const auto weights = static_cast<double>(spec::count_parameters(job.shape).total());
  EXPECT_EQ(there.memory.parts.optimizer, 0);
  // Masters, moments, fp32 gradients and new weights, of a shard.
  EXPECT_NEAR(there.memory.host, 18 * weights / 8, 1e6);
  EXPECT_LT(there.memory.peak(), here.memory.peak());
  EXPECT_GT(there.step_seconds(), here.step_seconds());
  // A machine that does not tell of its host has none to offer.
  EXPECT_FALSE(estimate(cost::load_hardware("deepseek-h800"), job, layout).memory.fits);
}

}  // namespace
}  // namespace trireme::plan
