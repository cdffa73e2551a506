// Scaled RoPE frequencies against the published formulas, written out here once more.
#include "trireme/nn/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace trireme::nn {
namespace {

constexpr std::int64_t kSize = 64;

double plain_frequency(double base, std::int64_t pair) {
  return std::exp(-2.0 * static_cast<double>(pair) / static_cast<double>(kSize) * std::log(base));
}

/// DeepSeek-V3's: 4096 tokens stretched forty times.
spec::Rotary deepseek() {
  return {.base = 10000,
          .scaling = spec::RotaryScaling::kYarn,
          .factor = 40,
          .original_positions = 4096,
          .mscale = 1,
          .mscale_all_dim = 1};
}

TEST(Rotary, YarnLeavesFastPairsStretchesSlowOnesAndBlendsBetween) {
  const RotaryFrequencies found = rotary_frequencies(deepseek(), kSize, 163840);
  ASSERT_EQ(found.inverse.size(), 32u);
  // A pair turns L w / (2 pi) times over the context: 32 times at pair 10.47, once at pair 22.51, rounded outwards.
  const auto pair_of = [](double turns) {
    return kSize * std::log(4096 / (turns * 2 * std::numbers::pi)) / (2 * std::log(10000.0));
  };
  EXPECT_EQ(std::floor(pair_of(32)), 10);
  EXPECT_EQ(std::ceil(pair_of(1)), 23);
  for (std::int64_t pair = 0; pair < 32; ++pair) {
    const double plain = plain_frequency(10000, pair);
    const double expected = pair <= 10   ? plain
                            : pair >= 23 ? plain / 40
                                         : plain * ((23.0 - static_cast<double>(pair)) / 13) +
                                               plain / 40 * ((static_cast<double>(pair) - 10) / 13);
    EXPECT_NEAR(found.inverse[static_cast<std::size_t>(pair)], expected, 1e-15 * plain) << pair;
  }
}

TEST(Rotary, YarnScalesByMscaleWhatItsFieldsSay) {
  const double mscale = 0.1 * std::log(40.0) + 1;  // 1.36888...
  EXPECT_NEAR(mscale, 1.3688879454113937, 1e-15);
  // DeepSeek-V3: cosines and sines stay, scores are multiplied by the square.
  EXPECT_DOUBLE_EQ(rotary_frequencies(deepseek(), kSize, 0).magnitude, 1);
  EXPECT_NEAR(spec::rotary_score_factor(deepseek()), 1.8738542070926265, 1e-14);
  // DeepSeek-V2: 0.707 each.
  spec::Rotary lite = deepseek();
  lite.mscale = lite.mscale_all_dim = 0.707;
  EXPECT_DOUBLE_EQ(rotary_frequencies(lite, kSize, 0).magnitude, 1);
  EXPECT_NEAR(spec::rotary_score_factor(lite), std::pow(0.0707 * std::log(40.0) + 1, 2), 1e-15);
  lite.mscale = 1;
  EXPECT_NEAR(rotary_frequencies(lite, kSize, 0).magnitude, mscale / (0.0707 * std::log(40.0) + 1), 1e-15);
  // The paper's own form, and one that is given.
  spec::Rotary paper = deepseek();
  paper.mscale = paper.mscale_all_dim = 0;
  EXPECT_NEAR(rotary_frequencies(paper, kSize, 0).magnitude, mscale, 1e-15);
  EXPECT_DOUBLE_EQ(spec::rotary_score_factor(paper), 1);
  paper.attention_factor = 1.25;
  EXPECT_DOUBLE_EQ(rotary_frequencies(paper, kSize, 0).magnitude, 1.25);
  // Without YaRN nothing of it.
  spec::Rotary none = deepseek();
  none.scaling = spec::RotaryScaling::kNone;
  EXPECT_DOUBLE_EQ(rotary_frequencies(none, kSize, 0).magnitude, 1);
  EXPECT_DOUBLE_EQ(spec::rotary_score_factor(none), 1);
}

TEST(Rotary, LinearDividesEveryFrequency) {
  const RotaryFrequencies found =
      rotary_frequencies({.base = 500, .scaling = spec::RotaryScaling::kLinear, .factor = 4}, kSize, 0);
  for (std::int64_t pair = 0; pair < 32; ++pair) {
    EXPECT_NEAR(found.inverse[static_cast<std::size_t>(pair)], plain_frequency(500, pair) / 4, 1e-15);
  }
}

TEST(Rotary, DynamicRaisesTheBaseForLongerSequences) {
  const spec::Rotary rotary{
      .base = 10000, .scaling = spec::RotaryScaling::kDynamic, .factor = 2, .original_positions = 2048};
  // At 8192 tokens: (2 * 4 - 1)^(64 / 62) times the base.
  const double base = 10000 * std::pow(7.0, 64.0 / 62);
  const RotaryFrequencies longer = rotary_frequencies(rotary, kSize, 8192),
                          same = rotary_frequencies(rotary, kSize, 2048);
  for (std::int64_t pair = 0; pair < 32; ++pair) {
    EXPECT_NEAR(longer.inverse[static_cast<std::size_t>(pair)], plain_frequency(base, pair), 1e-15);
    EXPECT_NEAR(same.inverse[static_cast<std::size_t>(pair)], plain_frequency(10000, pair), 1e-15);
  }
  // The slowest pair then turns as far as linear scaling by the same stretch would have it: that is what it is for.
  EXPECT_NEAR(longer.inverse[31], plain_frequency(10000, 31) / 7, 1e-12);
}

TEST(Rotary, Llama3StretchesLongWavesOnly) {
  const spec::Rotary rotary{.base = 500000,
                            .scaling = spec::RotaryScaling::kLlama3,
                            .factor = 8,
                            .low_frequency = 1,
                            .high_frequency = 4,
                            .original_positions = 8192};
  const RotaryFrequencies found = rotary_frequencies(rotary, kSize, 0);
  int blended = 0;
  for (std::int64_t pair = 0; pair < 32; ++pair) {
    const double plain = plain_frequency(500000, pair), turns = 8192 * plain / (2 * std::numbers::pi);
    const double share = (turns - 1) / 3;
    const double expected = turns > 4 ? plain : turns < 1 ? plain / 8 : share * plain + (1 - share) * plain / 8;
    blended += turns <= 4 && turns >= 1 ? 1 : 0;
    EXPECT_NEAR(found.inverse[static_cast<std::size_t>(pair)], expected, 1e-15) << pair;
  }
  EXPECT_GT(blended, 0);
}

}  // namespace
}  // namespace trireme::nn
