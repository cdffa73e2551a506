// The estimator of the gradient noise scale on gradients with known mean and covariance.
#include "trireme/train/engine/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "trireme/base/random.h"

namespace trireme::train {
namespace {

struct KnownGradient {
  std::vector<double> mean = {0.5, -0.25, 0.125, 0.3};
  std::vector<double> deviation = {1, 0.5, 2, 0.25};  // of one token
  double square() const { return std::inner_product(mean.begin(), mean.end(), mean.begin(), 0.0); }
  double trace() const { return std::inner_product(deviation.begin(), deviation.end(), deviation.begin(), 0.0); }
};

/// Unbiased, whatever the sizes: both estimates within three standard errors of the truth over many draws.
TEST(NoiseEstimate, IsUnbiasedForEveryLayout) {
  const KnownGradient known;
  for (const int ranks : {2, 4, 8}) {
    for (const int micros : {1, 2, 16}) {
      constexpr int kDraws = 2000;
      constexpr double kTokens = 4;  // of a micro-batch
      const Random random(17, "noise/" + std::to_string(ranks) + "/" + std::to_string(micros));
      std::uint64_t next = 0;
      double sums[2] = {}, squares[2] = {};
      for (int draw = 0; draw < kDraws; ++draw) {
        double small_square = 0, big_square = 0;
        for (std::size_t i = 0; i < known.mean.size(); ++i) {
          double sum = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            const double first = known.mean[i] + known.deviation[i] / std::sqrt(kTokens) * random.normal(next++);
            small_square += first * first / ranks;
            sum += first;
            // The rest of the rank's micro-batches, together.
            if (micros > 1)
              sum += (micros - 1) * known.mean[i] +
                     known.deviation[i] * std::sqrt((micros - 1) / kTokens) * random.normal(next++);
          }
          big_square += std::pow(sum / (ranks * micros), 2);
        }
        NoiseAverage one;
        one.add(small_square, kTokens, big_square, kTokens * ranks * micros, 0);
        const double found[2] = {one.gradient_square(), one.trace()};
        for (int k = 0; k < 2; ++k) sums[k] += found[k], squares[k] += found[k] * found[k];
      }
      const double truth[2] = {known.square(), known.trace()};
      for (int k = 0; k < 2; ++k) {
        const double mean = sums[k] / kDraws, variance = squares[k] / kDraws - mean * mean;
        EXPECT_NEAR(mean, truth[k], 3.5 * std::sqrt(variance / kDraws)) << ranks << " ranks, " << micros << " micros";
      }
    }
  }
}

TEST(NoiseEstimate, AveragesNumeratorAndDenominatorApart) {
  NoiseAverage average;
  EXPECT_FALSE(average.scale());
  average.add(/*small_square=*/3, 10, /*big_square=*/2, 100, 0.9);
  EXPECT_NEAR(average.gradient_square(), (200.0 - 30) / 90, 1e-12) << "the first step's weight is corrected";
  EXPECT_NEAR(average.trace(), 1 / (0.1 - 0.01), 1e-12);
  const double first = average.gradient_square();
  average.add(5, 10, 1, 100, 0.9);
  EXPECT_NEAR(average.gradient_square(), (0.9 * 0.1 * first + 0.1 * (100 - 50) / 90.0) / (1 - 0.81), 1e-12);
  average.add(std::nan(""), 10, 1, 100, 0.9);
  EXPECT_TRUE(average.scale()) << "a step that is not finite is left out";
}

TEST(NoiseEstimate, NamesLayers) {
  EXPECT_EQ(layer_of("layers.3.mlp.in.weight"), "layers.3");
  EXPECT_EQ(layer_of("encoder.layers.10.attention.qkv.weight"), "encoder.layers.10");
  EXPECT_EQ(layer_of("embedding.tokens.weight"), "embedding");
  EXPECT_EQ(layer_of("norm.weight"), "norm");
  EXPECT_EQ(layer_of("mtp.0.projection.weight"), "mtp.0");
}

}  // namespace
}  // namespace trireme::train
