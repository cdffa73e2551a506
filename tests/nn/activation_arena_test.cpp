// Saved inputs side by side: room that is given out and back in any order, and tensors that live in it.
#include "trireme/nn/activation_arena.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "trireme/base/random.h"

namespace trireme::nn {
namespace {

TEST(FreeRanges, GiveNoByteTwiceAndJoinNeighbours) {
  constexpr std::int64_t kRoom = 64 * FreeRanges::kAlignment;
  const Random random(5, "free ranges");
  std::uint64_t draw = 0;
  FreeRanges ranges(kRoom);
  std::vector<bool> taken(kRoom / FreeRanges::kAlignment, false);
  std::vector<std::pair<std::int64_t, std::int64_t>> out;  // begin, bytes
  const auto mark = [&](std::pair<std::int64_t, std::int64_t> one, bool value) {
    for (std::int64_t at = one.first; at < one.first + FreeRanges::rounded(one.second); at += FreeRanges::kAlignment) {
      const auto unit = static_cast<std::size_t>(at / FreeRanges::kAlignment);
      ASSERT_NE(taken[unit], value);
      taken[unit] = value;
    }
  };
  /// Longest stretch of free units.
  const auto largest = [&] {
    std::int64_t most = 0, here = 0;
    for (const bool one : taken) most = std::max(most, here = one ? 0 : here + FreeRanges::kAlignment);
    return most;
  };
  for (int round = 0; round < 5000; ++round) {
    if (out.empty() || random.below(2, draw++) == 0) {
      const auto bytes = static_cast<std::int64_t>(1 + random.below(9 * FreeRanges::kAlignment, draw++));
      const std::int64_t begin = ranges.take(bytes);
      ASSERT_EQ(begin < 0, largest() < FreeRanges::rounded(bytes));
      if (begin < 0) continue;
      ASSERT_LE(begin + bytes, kRoom);
      out.emplace_back(begin, bytes);
      mark(out.back(), true);
    } else {
      const auto which = static_cast<std::ptrdiff_t>(random.below(out.size(), draw++));
      const auto one = out[static_cast<std::size_t>(which)];
      out.erase(out.begin() + which);
      mark(one, false);
      ranges.give_back(one.first, one.second);
    }
    ASSERT_EQ(ranges.largest(), largest());
  }
  for (const auto& [begin, bytes] : out) ranges.give_back(begin, bytes);
  EXPECT_EQ(ranges.stretches(), 1U);
  EXPECT_EQ(ranges.largest(), kRoom);
}

TEST(ActivationArena, IsAsLargeAsTheFirstStepsPeakAndThenHoldsAll) {
  ActivationArena arena;
  const auto step = [&](int count) {
    std::vector<at::Tensor> kept;
    for (int i = 0; i < count; ++i) {
      const at::Tensor x = at::full({3, 100}, static_cast<float>(i));  // 1,200 bytes, five units
      kept.push_back(arena.keep(x));
      EXPECT_TRUE(kept.back().equal(x));
      EXPECT_EQ(arena.keep(kept.back()).const_data_ptr(), kept.back().const_data_ptr()) << "kept once";
    }
    const bool here = arena.bytes() > 0;
    for (std::size_t i = 1; here && i < kept.size(); ++i)
      EXPECT_EQ(kept[i].const_data_ptr<float>() - kept[i - 1].const_data_ptr<float>(), 5 * 256 / 4) << "side by side";
    for (int i = 0; i < count; ++i)
      EXPECT_TRUE(kept[static_cast<std::size_t>(i)].equal(at::full({3, 100}, static_cast<float>(i))));
  };
  step(4);
  EXPECT_EQ(arena.bytes(), 0);
  arena.end_step();
  EXPECT_EQ(arena.bytes(), 4 * 5 * 256);
  for (int round = 0; round < 3; ++round) step(4), arena.end_step();
  EXPECT_EQ(arena.left_out(), 0);
  EXPECT_EQ(arena.bytes(), 4 * 5 * 256);
}

TEST(ActivationArena, KeepsWhatDoesNotFitElsewhereAndGrowsWhenItIsEmpty) {
  ActivationArena arena;
  { const at::Tensor one = arena.keep(at::full({64}, 1.0F)); }
  arena.end_step();
  {
    const at::Tensor one = arena.keep(at::full({64}, 1.0F)), two = arena.keep(at::full({64}, 2.0F));
    EXPECT_EQ(arena.left_out(), 1);
    EXPECT_EQ(two.sum().item<float>(), 128);
    arena.end_step();  // in the midst of steps that run together
    EXPECT_EQ(arena.bytes(), 256);
    EXPECT_EQ(one.sum().item<float>(), 64);
  }
  arena.end_step();
  EXPECT_EQ(arena.bytes(), 512);
  const at::Tensor outlives = [] {
    ActivationArena other;
    const at::Tensor first = other.keep(at::full({8}, 3.0F));
    return first;
  }();
  EXPECT_EQ(outlives.sum().item<float>(), 24);
}

}  // namespace
}  // namespace trireme::nn
