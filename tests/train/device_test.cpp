// What run.device = "cuda" is refused for, with and without a GPU in the machine.
#include "trireme/train/engine/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/support.h"
#include "trireme/device/cuda.h"
#include "trireme/plan/check_recipe.h"
#include "trireme/plan/run_setup.h"
#include "trireme/train/diagnose/profile.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

spec::Recipe on_gpu() {
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2);
  recipe.run.device = spec::DeviceKind::kCuda;
  return recipe;
}

/// What rules say of GPUs, on so many ranks.
std::vector<config::Problem> device_problems(const spec::Recipe& recipe, int ranks,
                                             spec::RankKind kind = spec::RankKind::kThreads) {
  std::vector<config::Problem> found;
  for (const spec::Refusal& refusal :
       spec::find_refusals(plan::run_setup(recipe, model_shape(recipe), {.ranks = ranks, .rank_kind = kind}))) {
    if (refusal.problem.key == "train.cuda_graphs" || refusal.problem.key == "precision.gemm" ||
        refusal.problem.key == "run.device")
      found.push_back(refusal.problem);
  }
  return found;
}

TEST(Device, WhatCannotBeRecordedIsNamed) {
  spec::Recipe recipe = on_gpu();
  recipe.train.cuda_graphs = true;
  const auto threads = device_problems(recipe, 2);
  ASSERT_EQ(threads.size(), 1U);
  EXPECT_EQ(threads[0].key, "train.cuda_graphs");
  EXPECT_THAT(threads[0].reason, HasSubstr("2 ranks are threads"));
  EXPECT_FALSE(threads[0].hint.empty());
  const auto problems_of = [&](const auto& set) {
    spec::Recipe shared = recipe;
    set(shared.layout);
    return device_problems(shared, 2, spec::RankKind::kProcesses);
  };
  EXPECT_TRUE(problems_of([](spec::LayoutConfig& layout) { layout.zero = 1; }).empty());
  EXPECT_TRUE(problems_of([](spec::LayoutConfig& layout) { layout.tp = 2; }).empty());
  EXPECT_TRUE(problems_of([](spec::LayoutConfig& layout) {
                layout.tp = 2;
                layout.zero = 1;
                layout.sequence_parallel = true;
              }).empty());
  const auto expect_refused = [&](const auto& set, const char* reason, const char* hint) {
    const auto problems = problems_of(set);
    ASSERT_EQ(problems.size(), 1U) << reason;
    EXPECT_EQ(problems[0].key, "train.cuda_graphs");
    EXPECT_THAT(problems[0].reason, HasSubstr(reason));
    EXPECT_THAT(problems[0].hint, HasSubstr(hint));
  };
  const char* all_layers = "run all layers on whole rows";
  expect_refused([](spec::LayoutConfig& layout) { layout.zero = 2; }, all_layers, "layout.zero = 1");
  expect_refused([](spec::LayoutConfig& layout) { layout.cp = 2; }, all_layers, "layout.cp = 1 and layout.pp = 1");
  expect_refused([](spec::LayoutConfig& layout) { layout.pp = 2; }, all_layers, "layout.cp = 1 and layout.pp = 1");
  expect_refused(
      [](spec::LayoutConfig& layout) {
        layout.tp = 2;
        layout.sequence_parallel = layout.tp_overlap = true;
      },
      "layout.tp_overlap", "layout.tp_overlap = false");
  expect_refused(
      [](spec::LayoutConfig& layout) {
        layout.zero = 1;
        layout.offload = spec::OffloadKind::kOptimizer;
      },
      "layout.offload", "layout.offload = \"none\"");
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  recipe.train.offload_activations = true;
  EXPECT_TRUE(device_problems(recipe, 1).empty());
  spec::Recipe cpu = recipe;
  cpu.run.device = spec::DeviceKind::kCpu;
  cpu.train.cuda_graphs = false;
  EXPECT_TRUE(device_problems(cpu, 1).empty());
  comm::run_ranks(1, [&](comm::Rank& rank) { EXPECT_EQ(device_of(cpu, rank.world()), c10::kCPU); });
}

TEST(Device, ThreadsMayShareAGpu) { EXPECT_TRUE(device_problems(on_gpu(), 2).empty()); }

TEST(Device, NoGpuIsSaidInWords) {
  std::string why;
  if (device::has_cuda(&why)) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT(why, HasSubstr("GPU"));
  try {
    with_trainers(on_gpu(), 1, [](Trainer&, comm::Rank&) {});
    FAIL() << "trained without a GPU";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("GPU"));
    EXPECT_THAT(error.hint(), HasSubstr("run.device = \"cpu\""));
  }
}

TEST(Device, EightBitGemmsNeedBf16) {
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2);
  recipe.precision.gemm = spec::GemmPrecision::kFp8;
  std::vector<std::string> reasons;
  for (const config::Problem& problem : spec::find_problems(recipe)) {
    if (problem.key == "precision.gemm") reasons.push_back(problem.reason);
  }
  EXPECT_EQ(reasons.size(), 1U);
  recipe.precision.compute = spec::Precision::kBf16;
  EXPECT_TRUE(spec::find_problems(recipe).empty());
}

TEST(Device, RanksAgreeOnDelayedScalesUnlessTheyAreAtDifferentSteps) {
  spec::Recipe recipe = on_gpu();
  recipe.precision.compute = spec::Precision::kBf16;
  recipe.precision.gemm = spec::GemmPrecision::kFp8Delayed;
  // Sizes that FP8 GEMMs take on two ranks.
  recipe.model.hidden_size = recipe.model.ffn_size = 64;
  recipe.model.num_heads = recipe.model.num_kv_heads = 4;
  recipe.model.head_dim = 16;
  recipe.model.max_seq_len = recipe.data.seq_len = 32;
  recipe.batch.global_batch_tokens = std::int64_t{4} * 32;
  const auto problems = [&](const auto& set) {
    spec::Recipe changed = recipe;
    set(changed.layout);
    return device_problems(changed, 2);
  };
  EXPECT_TRUE(problems([](spec::LayoutConfig&) {}).empty());
  EXPECT_TRUE(problems([](spec::LayoutConfig& layout) { layout.tp = 2; }).empty());
  EXPECT_TRUE(problems([](spec::LayoutConfig& layout) { layout.cp = 2; }).empty());
  EXPECT_TRUE(problems([](spec::LayoutConfig& layout) { layout.zero = 2; }).empty());
  EXPECT_TRUE(problems([](spec::LayoutConfig& layout) { layout.zero = 3; }).empty());
  EXPECT_TRUE(problems([](spec::LayoutConfig& layout) { layout.pp = 2; }).empty());
  recipe.pipeline.drain_every = 2;
  EXPECT_TRUE(problems([](spec::LayoutConfig& layout) { layout.pp = 2; }).empty());
  recipe.pipeline.stage_ranks = {1, 1};
  EXPECT_TRUE(problems([](spec::LayoutConfig& layout) { layout.pp = 2; }).empty());
  recipe.pipeline = {.schedule = "hetpipe"};
  recipe.optim.kind = spec::OptimizerKind::kSgd;
  recipe.optim.momentum = recipe.optim.weight_decay = recipe.optim.grad_clip_norm = 0;
  const auto waves = problems([](spec::LayoutConfig& layout) { layout.pp = 2; });
  ASSERT_EQ(waves.size(), 1U);
  EXPECT_EQ(waves[0].key, "precision.gemm");
  EXPECT_THAT(waves[0].reason, HasSubstr("virtual workers are at different ones"));
  EXPECT_THAT(waves[0].hint, HasSubstr("pipeline.schedule = \"1f1b\""));
}

TEST(MemoryPlan, FollowsTheRecipe) {
  spec::Recipe recipe = on_gpu();
  recipe.precision.compute = spec::Precision::kBf16;
  const spec::ModelShape shape = model_shape(recipe);
  using Use = plan::MemoryUse;
  const auto bytes = [&](Use use) { return plan_memory(recipe, shape, 1, 12).stages.front()[use]; };
  const auto parameters = static_cast<double>(spec::count_parameters(shape).total());
  EXPECT_EQ(bytes(Use::kWeights), 2 * parameters);
  EXPECT_EQ(bytes(Use::kOptimizerState), 8 * parameters);
  const double gradients = bytes(Use::kGradients);
  recipe.optim.state_dtype = spec::StateDtype::kBf16;
  recipe.precision.master_weights = spec::MasterWeights::kNone;
  EXPECT_EQ(bytes(Use::kOptimizerState), 4 * parameters);
  EXPECT_LT(bytes(Use::kGradients), gradients);
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  EXPECT_EQ(bytes(Use::kOptimizerState), 0);
  recipe.run.device = spec::DeviceKind::kCpu;
  EXPECT_TRUE(plan_memory(recipe, shape, 1, 12).stages.empty());
}

/// One account: `check` says what `train --memory` says, stage by stage and line by line.
TEST(MemoryPlan, IsWhatACheckSays) {
  for (const char* schedule : {"", "1f1b", "chimera", "zb-v"}) {
    spec::Recipe recipe = on_gpu();
    recipe.precision.compute = spec::Precision::kBf16;
    recipe.batch.global_batch_tokens = 8 * recipe.data.seq_len;
    recipe.train.micro_batch_size = 1;
    const int ranks = *schedule == '\0' ? 1 : 2;
    if (ranks > 1) recipe.layout.pp = 2, recipe.pipeline.schedule = schedule;
    const MemoryPlan plan = plan_memory(recipe, model_shape(recipe), ranks, recipe.data.seq_len);
    const plan::Checkup checkup =
        plan::check_recipe(recipe, {.ranks = ranks, .hardware = cost::load_hardware("h200"), .judge_memory = false});
    ASSERT_EQ(plan.stages.size(), checkup.stages.size()) << schedule;
    for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
      plan::RankMemory checked = checkup.stages[stage];
      checked[plan::MemoryUse::kContext] = 0;  // told beside the plan
      EXPECT_EQ(plan.stages[stage].bytes, checked.bytes) << schedule << " stage " << stage;
    }
  }
}

TEST(MemoryPlan, IsToldWithoutAGpu) {
  spec::Recipe recipe = on_gpu();
  recipe.run.device = spec::DeviceKind::kCpu;
  const std::string text = tell_memory({.recipe = recipe});
  EXPECT_THAT(text, HasSubstr("weights"));
  EXPECT_THAT(text, HasSubstr("at most"));
  recipe.layout.zero = 3;
  EXPECT_THAT(tell_memory({.recipe = recipe, .ranks = 4}), HasSubstr("sharded"));
  recipe.layout = {.pp = 2};
  EXPECT_THAT(tell_memory({.recipe = recipe, .ranks = 2}), HasSubstr("stage 1: "));
}

TEST(MemoryPlan, IsRefusedWithItsTableWhereItDoesNotFit) {
  const spec::Recipe recipe = on_gpu();
  const MemoryPlan plan = plan_memory(recipe, model_shape(recipe), 1, 12);
  require_room(plan, 2e9, 1);
  try {
    require_room(plan, 0.5e9, 2);
    FAIL() << "fits into nothing";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("2 ranks that share it"));
    EXPECT_THAT(error.message(), HasSubstr("activations"));
    EXPECT_THAT(error.hint(), HasSubstr("layout.offload"));
  }
}

TEST(Profile, KernelsAreSortedByTheirNames) {
  EXPECT_EQ(kind_of_kernel("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"), "GEMMs");
  EXPECT_EQ(kind_of_kernel("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma"), "attention");
  EXPECT_EQ(
      kind_of_kernel("void trireme::kernels::gpu::(anonymous namespace)::backward_held<__nv_bfloat16, true>(int)"),
      "norms");
  EXPECT_EQ(kind_of_kernel("void trireme::kernels::gpu::(anonymous namespace)::forward<float, Gelu, 8>(int)"),
            "activations");
  EXPECT_EQ(kind_of_kernel("Memcpy DtoH (Device -> Pageable)"), "copies");
  EXPECT_EQ(kind_of_kernel("void at::native::vectorized_elementwise_kernel<4>(int)"), "others");
  EXPECT_EQ(short_kernel_name("void trireme::kernels::gpu::(anonymous namespace)::adam_many<float>(int)"), "adam_many");
  EXPECT_EQ(short_kernel_name("nvjet_sm90"), "nvjet_sm90");
}

}  // namespace
}  // namespace trireme::train
