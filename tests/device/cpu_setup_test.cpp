#include "trireme/device/cpu_setup.h"

#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

namespace trireme::device {
namespace {

TEST(Amx, IsUnusableWhereTheSizesOfItsTilesAreMissing) {
  EXPECT_FALSE(is_amx_unusable({.tiles = false, .max_leaf = 0x10, .palettes = 0}));
  EXPECT_FALSE(is_amx_unusable({.tiles = true, .max_leaf = 0x20, .palettes = 1}));
  EXPECT_TRUE(is_amx_unusable({.tiles = true, .max_leaf = 0x1C, .palettes = 0}));
  EXPECT_TRUE(is_amx_unusable({.tiles = true, .max_leaf = 0x20, .palettes = 0}));
}

/// Where AMX is unusable this ends the process if nothing is done about it.
TEST(Amx, GemmsOfBf16AreRightOnThisMachine) {
  const at::Tensor x = at::ones({64, 128}, at::kBFloat16), y = at::ones({128, 96}, at::kBFloat16);
  const at::Tensor product = at::mm(x, y);
  EXPECT_EQ(product.min().item<float>(), 128);
  EXPECT_EQ(product.max().item<float>(), 128);
}

/// Each test is a process of its own where ctest runs them, so this is the process's first use by several threads.
TEST(MklVml, IsExactWhenItIsFirstUsed) {
  EXPECT_TRUE(is_mkl_vml_initialised());
  const at::Tensor x = at::randn({4, 37, 37}, at::kDouble);
  const at::Tensor sums = at::logsumexp(x, {-1}).flatten(), rows = x.flatten(0, 1);
  for (std::int64_t row = 0; row < rows.size(0); ++row) {
    double right = 0;
    for (std::int64_t i = 0; i < rows.size(1); ++i) right += std::exp(rows.const_data_ptr<double>()[row * 37 + i]);
    EXPECT_NEAR(sums.const_data_ptr<double>()[row], std::log(right), 1e-13);
  }
}

}  // namespace
}  // namespace trireme::device
