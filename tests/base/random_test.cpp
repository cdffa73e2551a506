#include "trireme/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/random_math.h"

namespace trireme {
namespace {

TEST(Philox, GivesThePublishedAnswers) {  // kat_vectors of Random123, philox4x32 with 10 rounds
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomMath, IsWithinTwoUnitsOfTheLibrary) {
  const Random random(1, "math");
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    // Also far down: the smallest argument a normal draw has is 2^-53.
    const double x = std::ldexp(random.uniform(i) + 0x1p-53, -static_cast<int>(i % 50));
    const double expected = std::log(x), unit = std::nextafter(std::abs(expected), 1e9) - std::abs(expected);
    ASSERT_NEAR(random_math::log(x), expected, 2 * unit) << x;
    const double turns = random.uniform(i);
    const auto [sine, cosine] = random_math::sin_cos_of_turns(turns);
    const long double angle = 2 * 3.14159265358979323846264338327950288L * static_cast<long double>(turns);
    ASSERT_NEAR(sine, static_cast<double>(std::sin(angle)), 2.3e-16) << turns;
    ASSERT_NEAR(cosine, static_cast<double>(std::cos(angle)), 2.3e-16) << turns;
  }
  EXPECT_EQ(random_math::log(1.0), 0.0);
  EXPECT_EQ(random_math::sin_cos_of_turns(0.25).sin, 1.0);
  EXPECT_EQ(random_math::sin_cos_of_turns(0.5).cos, -1.0);
}

// A change of any of these breaks every saved run: it needs a new version of the checkpoint format.
TEST(Random, NeverChangesItsNumbers) {
  const Random random(42, "golden");
  EXPECT_EQ(random.bits(0), 0x597134187e631eeeu);
  EXPECT_EQ(random.bits(1'000'000'000'001), 0xcf20e01bfa8cb1f2u);
  EXPECT_EQ(random.uniform(7), 0x1.3af140fcb4998p-2);
  EXPECT_EQ(random.uniform_float(7), 0x1.c6eeacp-1F);
  EXPECT_EQ(random.below(1000, 7), 640u);
  EXPECT_EQ(random.normal(7), 0x1.02ebe9dcdfdbcp+0);
  EXPECT_EQ(random.normal_float(7), 0x1.a0f7d6p-3F);
  EXPECT_EQ(Random(42, "another name, longer than a block").bits(0), 0xbd50fe7b40090754u);
}

TEST(Random, SeedNameAndIndexEachMatter) {
  std::set<std::uint64_t> seen;
  std::size_t draws = 0;
  for (const std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32, 1ULL << 63}) {
    for (const std::string name : {"", "a", "b", "ab", "ba", "aaaaaaaa", "aaaaaaaaa", "aaaaaaaab"}) {
      for (const std::uint64_t index : {0ULL, 1ULL, 2ULL, 1ULL << 32, 1ULL << 63}) {
        seen.insert(Random(seed, name).bits(index));
        ++draws;
      }
    }
  }
  EXPECT_EQ(seen.size(), draws) << "two of the draws coincide";
  EXPECT_NE(Random(1, std::string("a\0", 2)).bits(0), Random(1, "a").bits(0));
}

template <typename Value, typename Fill, typename Single>
void expect_fills_equal_draws(Fill fill, Single single) {
  // Ends that do not fall on blocks (2 or 4 draws) or batches (64 blocks), and indices above 32 bits.
  for (const std::uint64_t begin : {0ULL, 1ULL, 3ULL, 4'294'967'290ULL, 1ULL << 40}) {
    for (const std::size_t count : {0UL, 1UL, 2UL, 5UL, 127UL, 256UL, 259UL, 1000UL}) {
      std::vector<Value> filled(count + 1, Value(77));
      fill(begin, std::span<Value>(filled).first(count));
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(filled[i], single(begin + i)) << "draw " << i << " of " << count << " from " << begin;
      }
      ASSERT_EQ(filled[count], Value(77)) << "written beyond the end";
    }
  }
}

TEST(Random, FillsEqualSingleDraws) {
  const Random random(3, "fills");
  expect_fills_equal_draws<std::uint64_t>([&](auto begin, auto out) { random.fill_bits(begin, out); },
                                          [&](auto index) { return random.bits(index); });
  expect_fills_equal_draws<double>([&](auto begin, auto out) { random.fill_uniform(begin, out); },
                                   [&](auto index) { return random.uniform(index); });
  expect_fills_equal_draws<float>([&](auto begin, auto out) { random.fill_uniform(begin, out); },
                                  [&](auto index) { return random.uniform_float(index); });
  expect_fills_equal_draws<double>([&](auto begin, auto out) { random.fill_normal(begin, out); },
                                   [&](auto index) { return random.normal(index); });
  expect_fills_equal_draws<float>([&](auto begin, auto out) { random.fill_normal(begin, out); },
                                  [&](auto index) { return random.normal_float(index); });
  expect_fills_equal_draws<std::uint64_t>([&](auto begin, auto out) { random.fill_below(10, begin, out); },
                                          [&](auto index) { return random.below(10, index); });
}

/// Sum of (seen - expected)^2 / expected, and how far from its mean, in standard deviations, that is.
double chi_square_deviation(const std::vector<std::size_t>& seen, std::size_t draws) {
  const double expected = static_cast<double>(draws) / static_cast<double>(seen.size());
  double sum = 0;
  for (const std::size_t count : seen) sum += std::pow(static_cast<double>(count) - expected, 2) / expected;
  const double freedom = static_cast<double>(seen.size() - 1);
  return (sum - freedom) / std::sqrt(2 * freedom);
}

constexpr std::size_t kDraws = 1 << 18;

TEST(Random, UniformsFillTheUnitIntervalEvenly) {
  const Random random(11, "uniform");
  std::vector<double> wide(kDraws);
  std::vector<float> narrow(kDraws);
  random.fill_uniform(0, std::span(wide));
  random.fill_uniform(0, std::span(narrow));
  std::vector<std::size_t> wide_seen(256), narrow_seen(256), pairs_seen(256);
  for (std::size_t i = 0; i < kDraws; ++i) {
    ASSERT_TRUE(wide[i] >= 0 && wide[i] < 1 && narrow[i] >= 0 && narrow[i] < 1);
    ++wide_seen[static_cast<std::size_t>(wide[i] * 256)];
    ++narrow_seen[static_cast<std::size_t>(narrow[i] * 256)];
    if (i > 0) ++pairs_seen[static_cast<std::size_t>(wide[i - 1] * 16) * 16 + static_cast<std::size_t>(wide[i] * 16)];
  }
  EXPECT_LT(std::abs(chi_square_deviation(wide_seen, kDraws)), 4);
  EXPECT_LT(std::abs(chi_square_deviation(narrow_seen, kDraws)), 4);
  EXPECT_LT(std::abs(chi_square_deviation(pairs_seen, kDraws - 1)), 4) << "neighbours depend on each other";
}

template <typename Value>
void expect_normal(const std::vector<Value>& draws) {
  double sum = 0, squares = 0, cubes = 0, fourths = 0, product = 0;
  std::size_t beyond_three = 0;
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const double x = static_cast<double>(draws[i]);
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    beyond_three += std::abs(x) > 3 ? 1 : 0;
    if (i > 0) product += x * static_cast<double>(draws[i - 1]);
  }
  const double n = static_cast<double>(draws.size()), sigma = 1 / std::sqrt(n);  // moments 1..4 vary by 1, 2, 15, 96
  EXPECT_NEAR(sum / n, 0, 4 * sigma);
  EXPECT_NEAR(squares / n, 1, 4 * std::sqrt(2.0) * sigma);
  EXPECT_NEAR(cubes / n, 0, 4 * std::sqrt(15.0) * sigma);
  EXPECT_NEAR(fourths / n, 3, 4 * std::sqrt(96.0) * sigma);
  EXPECT_NEAR(product / n, 0, 4 * sigma) << "neighbours depend on each other";
  EXPECT_NEAR(static_cast<double>(beyond_three) / n, 0.0026998, 4 * std::sqrt(0.0027 / n));
}

TEST(Random, NormalsHaveTheMomentsAndTailsOfTheNormalDistribution) {
  std::vector<double> wide(kDraws);
  std::vector<float> narrow(kDraws);
  Random(12, "normal").fill_normal(0, std::span(wide));
  Random(12, "normal").fill_normal(0, std::span(narrow));
  expect_normal(wide);
  expect_normal(narrow);
}

TEST(Random, BelowIsEvenAlsoWhereTheRemainderWouldBeBiased) {
  const Random random(13, "below");
  std::vector<std::size_t> seen(7);
  for (std::size_t i = 0; i < 70'000; ++i) ++seen[random.below(7, i)];
  EXPECT_LT(std::abs(chi_square_deviation(seen, 70'000)), 4);

  // For n = 3 * 2^62 a plain multiplication would give every third value twice as often, and a third of the draws is
  // rejected: the retries must be even too.
  const std::uint64_t n = 3ULL << 62;
  std::vector<std::size_t> thirds(3);
  for (std::size_t i = 0; i < 30'000; ++i) {
    const std::uint64_t value = random.below(n, i);
    ASSERT_LT(value, n);
    ++thirds[value % 3];
  }
  EXPECT_LT(std::abs(chi_square_deviation(thirds, 30'000)), 4);
  EXPECT_EQ(random.below(1, 5), 0u);
  EXPECT_THROW((void)random.below(0, 5), InternalError);
}

}  // namespace
}  // namespace trireme
