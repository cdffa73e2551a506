// What run.device = "cuda" is refused for, with and without a GPU in the machine.
#include "trireme/train/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/support.h"
#include "trireme/device/cuda.h"
#include "trireme/train/profile.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

spec::Recipe on_gpu() {
  spec::Recipe recipe = small_recipe(spec::Family::kGpt2);
  recipe.run.device = spec::DeviceKind::kCuda;
  return recipe;
}

TEST(Device, WhatAGpuCannotDoYetIsNamed) {
  spec::Recipe recipe = on_gpu();
  recipe.layout.offload = spec::OffloadKind::kOptimizer;
  recipe.train.offload_activations = true;
  comm::run_ranks(1, [&](comm::Rank& rank) {
    const auto problems = find_device_problems(recipe, rank.world());
    ASSERT_EQ(problems.size(), 2U);
    EXPECT_EQ(problems[0].key, "layout.offload");
    EXPECT_EQ(problems[1].key, "train.offload_activations");
    for (const config::Problem& problem : problems) EXPECT_FALSE(problem.hint.empty());
    spec::Recipe cpu = recipe;
    cpu.run.device = spec::DeviceKind::kCpu;
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
  recipe.precision.products = spec::Products::kFp8;
  std::vector<std::string> reasons;
  for (const config::Problem& problem : spec::find_problems(recipe)) {
    if (problem.key == "precision.products") reasons.push_back(problem.reason);
  }
  EXPECT_EQ(reasons.size(), 2U);
  recipe.run.device = spec::DeviceKind::kCuda;
  recipe.precision.compute = spec::Precision::kBf16;
  EXPECT_TRUE(spec::find_problems(recipe).empty());
}

TEST(Profile, KernelsAreSortedByTheirNames) {
  EXPECT_EQ(kind_of_kernel("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"), "matrix products");
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
