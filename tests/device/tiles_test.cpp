#include "trireme/device/tiles.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace trireme::device {
namespace {

TEST(Tiles, AreHollowWhereTheirSizesAreNotTold) {
  EXPECT_FALSE(are_tiles_hollow({.tiles = false, .max_leaf = 0x10, .palettes = 0}));
  EXPECT_FALSE(are_tiles_hollow({.tiles = true, .max_leaf = 0x20, .palettes = 1}));
  EXPECT_TRUE(are_tiles_hollow({.tiles = true, .max_leaf = 0x1C, .palettes = 0}));
  EXPECT_TRUE(are_tiles_hollow({.tiles = true, .max_leaf = 0x20, .palettes = 0}));
}

/// Where tiles are hollow this ends the process if nothing is done about it.
TEST(Tiles, ProductsOfBf16AreRightOnThisMachine) {
  const at::Tensor x = at::ones({64, 128}, at::kBFloat16), y = at::ones({128, 96}, at::kBFloat16);
  const at::Tensor product = at::mm(x, y);
  EXPECT_EQ(product.min().item<float>(), 128);
  EXPECT_EQ(product.max().item<float>(), 128);
}

}  // namespace
}  // namespace trireme::device
