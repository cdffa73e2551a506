#include "trireme/data/blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::data {
namespace {

using ::testing::ElementsAre;

TEST(Blend, OfDecimalWeightsIsExact) {
  const double weights[] = {0.3, 0.7};
  const Blend blend(weights);
  EXPECT_THAT(blend.parts(), ElementsAre(3, 7));
  EXPECT_EQ(blend.whole(), 10);
  const double counts[] = {2, 1, 1};
  EXPECT_THAT(Blend(counts).parts(), ElementsAre(2, 1, 1));
  const double one[] = {0.123};
  EXPECT_EQ(Blend(one).at(17), (Blend::Place{0, 17}));
}

TEST(Blend, OfAnyWeightsGivesEachSourceItsShareAtAllTimes) {
  const Random random(4, "weights");
  std::uint64_t draw = 0;
  for (int round = 0; round < 30; ++round) {
    std::vector<double> weights(1 + random.below(round < 25 ? 8 : 60, draw++));
    for (double& weight : weights) {
      weight = round % 2 == 0 ? std::exp(2 * random.normal(draw++)) : static_cast<double>(1 + random.below(20, draw++));
    }
    const Blend blend(weights);
    double total = 0;
    for (const double weight : weights) total += weight;
    std::vector<std::int64_t> counts(weights.size());
    const std::int64_t samples = std::min<std::int64_t>(3 * blend.whole(), 20000);
    for (std::int64_t i = 0; i < samples; ++i) {
      const auto [source, number] = blend.at(i);
      ASSERT_EQ(number, counts[source]) << i;
      ++counts[source];
      if (i % 7 != 0) continue;
      ASSERT_TRUE(i % 91 != 0 || blend.samples_until(source, number + 1) == i + 1) << i;
      for (std::size_t s = 0; s < weights.size(); ++s) {
        const double share =
            static_cast<double>(i + 1) * static_cast<double>(blend.parts()[s]) / static_cast<double>(blend.whole());
        ASSERT_LT(std::abs(static_cast<double>(counts[s]) - share), 1) << s << " after " << i + 1;
      }
    }
    for (std::size_t s = 0; s < weights.size(); ++s) {
      const double part = static_cast<double>(blend.parts()[s]) / static_cast<double>(blend.whole());
      EXPECT_NEAR(part, weights[s] / total, 1.0 / 65536);
    }
  }
}

TEST(Blend, KeepsSourcesWithTinyShares) {
  const double weights[] = {1, 65534.5 * 3.14159265, 1.5};
  const Blend blend(weights);
  for (const std::int64_t part : blend.parts()) EXPECT_GE(part, 1);
  EXPECT_EQ(blend.whole(), 65536);
  EXPECT_THROW(Blend(std::vector<double>(2000, 1.0)), ConfigError);
}

}  // namespace
}  // namespace trireme::data
