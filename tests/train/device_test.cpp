// What run.device = "cuda" is refused for, with and without a GPU in the machine.
#include "trireme/train/engine/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/support.h"
#include "trireme/device/cuda.h"
#include "trireme/train/diagnose/profile.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

spec::Recipe on_gpu() {
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2);
  recipe.run.device = spec::DeviceKind::kCuda;
  return recipe;
}

TEST(Device, WhatCannotBeRecordedIsNamed) {
  spec::Recipe recipe = on_gpu();
  recipe.train.cuda_graphs = true;
  comm::run_ranks(2, [&](comm::Rank& rank) {
    const auto problems = find_device_problems(recipe, rank.world());
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_EQ(problems[0].key, "train.cuda_graphs");
    EXPECT_THAT(problems[0].reason, HasSubstr("2 ranks are threads"));
    EXPECT_FALSE(problems[0].hint.empty());
  });
  // One rank stands for many that are processes: the rest of the rule is the layout's.
  const auto problems_of = [&](const auto& set) {
    spec::Recipe shared = recipe;
    set(shared.layout);
    std::vector<config::Problem> problems;
    comm::run_ranks(1, [&](comm::Rank& rank) { problems = find_device_problems(shared, rank.world()); });
    return problems;
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
  expect_refused([](spec::LayoutConfig& layout) { layout.cp = 2; }, all_layers, "layout.cp and pp to 1");
  expect_refused([](spec::LayoutConfig& layout) { layout.pp = 2; }, all_layers, "layout.cp and pp to 1");
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
  comm::run_ranks(1, [&](comm::Rank& rank) {
    EXPECT_TRUE(find_device_problems(recipe, rank.world()).empty());
    spec::Recipe cpu = recipe;
    cpu.run.device = spec::DeviceKind::kCpu;
    cpu.train.cuda_graphs = false;
    EXPECT_TRUE(find_device_problems(cpu, rank.world()).empty());
    EXPECT_EQ(device_of(cpu, rank.world()), c10::kCPU);
  });
}

TEST(Device, ThreadsMayShareAGpu) {
  comm::run_ranks(2, [&](comm::Rank& rank) { EXPECT_TRUE(find_device_problems(on_gpu(), rank.world()).empty()); });
}

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

TEST(Device, EightBitProductsNeedAGpuAndBf16) {
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2);
  recipe.precision.gemm = spec::GemmPrecision::kFp8;
  std::vector<std::string> reasons;
  for (const config::Problem& problem : spec::find_problems(recipe)) {
    if (problem.key == "precision.gemm") reasons.push_back(problem.reason);
  }
  EXPECT_EQ(reasons.size(), 2U);
  recipe.run.device = spec::DeviceKind::kCuda;
  recipe.precision.compute = spec::Precision::kBf16;
  EXPECT_TRUE(spec::find_problems(recipe).empty());
}

TEST(Device, RanksAgreeOnDelayedScalesWhereEachHasAllLayers) {
  spec::Recipe recipe = on_gpu();
  recipe.precision.compute = spec::Precision::kBf16;
  recipe.precision.gemm = spec::GemmPrecision::kFp8Delayed;
  const auto problems = [&](const auto& set) {
    spec::Recipe changed = recipe;
    set(changed.layout);
    std::vector<config::Problem> found;
    comm::run_ranks(2, [&](comm::Rank& rank) {
      const auto mine = find_device_problems(changed, rank.world());
      if (rank.rank() == 0) found = mine;
    });
    return found;
  };
  EXPECT_TRUE(problems([](spec::LayoutConfig&) {}).empty());
  EXPECT_TRUE(problems([](spec::LayoutConfig& layout) { layout.tp = 2; }).empty());
  EXPECT_TRUE(problems([](spec::LayoutConfig& layout) { layout.cp = 2; }).empty());
  EXPECT_TRUE(problems([](spec::LayoutConfig& layout) { layout.zero = 2; }).empty());
  const auto staged = problems([](spec::LayoutConfig& layout) { layout.pp = 2; });
  ASSERT_EQ(staged.size(), 1U);
  EXPECT_EQ(staged[0].key, "precision.gemm");
  EXPECT_THAT(staged[0].reason, HasSubstr("layout.pp = 2"));
  EXPECT_THAT(staged[0].hint, HasSubstr("layout.pp = 1"));
  const auto lent = problems([](spec::LayoutConfig& layout) { layout.zero = 3; });
  ASSERT_EQ(lent.size(), 1U);
  EXPECT_THAT(lent[0].reason, HasSubstr("layout.zero = 3"));
  EXPECT_THAT(lent[0].hint, HasSubstr("layout.zero = 2"));
}

TEST(MemoryPlan, FollowsTheRecipe) {
  spec::Recipe recipe = on_gpu();
  recipe.precision.compute = spec::Precision::kBf16;
  const spec::ModelShape shape = model_shape(recipe);
  const auto bytes = [&](const char* name) {
    for (const auto& line : plan_memory(recipe, shape, 1, 12).lines) {
      if (line.name == name) return line.bytes;
    }
    return 0.0;
  };
  const auto parameters = static_cast<double>(spec::count_parameters(shape).total());
  EXPECT_EQ(bytes("weights"), 2 * parameters);
  EXPECT_EQ(bytes("optimizer"), 8 * parameters);
  const double gradients = bytes("gradients");
  recipe.optim.state_dtype = spec::StateDtype::kBf16;
  recipe.precision.master_weights = spec::MasterWeights::kNone;
  EXPECT_EQ(bytes("optimizer"), 4 * parameters);
  EXPECT_LT(bytes("gradients"), gradients);
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  EXPECT_EQ(bytes("optimizer"), 0);
  recipe.run.device = spec::DeviceKind::kCpu;
  EXPECT_TRUE(plan_memory(recipe, shape, 1, 12).lines.empty());
}

TEST(MemoryPlan, IsToldWithoutAGpu) {
  spec::Recipe recipe = on_gpu();
  recipe.run.device = spec::DeviceKind::kCpu;
  const std::string text = tell_memory({.recipe = recipe});
  EXPECT_THAT(text, HasSubstr("weights"));
  EXPECT_THAT(text, HasSubstr("at most"));
  recipe.layout.zero = 3;
  EXPECT_THAT(tell_memory({.recipe = recipe, .ranks = 4}), HasSubstr("shared out"));
  recipe.layout = {.pp = 2};
  try {
    tell_memory({.recipe = recipe, .ranks = 2});
    FAIL() << "stages have no plan";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.hint(), HasSubstr("layout.pp=1"));
  }
}

TEST(MemoryPlan, IsRefusedWithItsTableWhereItDoesNotFit) {
  const spec::Recipe recipe = on_gpu();
  const plan::StepMemory plan = plan_memory(recipe, model_shape(recipe), 1, 12);
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
