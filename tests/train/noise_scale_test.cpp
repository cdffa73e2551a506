// The estimator of the gradient noise scale on gradients with known mean and covariance.
#include "trireme/train/engine/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/spec/hyperparameters.h"

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
    for (const int micros : {1, 2, 4, 8, 16}) {
      constexpr int kDraws = 10'000;
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
        one.add(noise_estimate(small_square, kTokens, big_square, kTokens * ranks * micros), 0);
        const double found[2] = {one.gradient_square(), one.trace()};
        for (int k = 0; k < 2; ++k) sums[k] += found[k], squares[k] += found[k] * found[k];
      }
      const double truth[2] = {known.square(), known.trace()};
      for (int k = 0; k < 2; ++k) {
        const double mean = sums[k] / kDraws, variance = squares[k] / kDraws - mean * mean;
        EXPECT_NEAR(mean, truth[k], 3 * std::sqrt(variance / kDraws)) << ranks << " ranks, " << micros << " micros";
      }
    }
  }
}

/// Ranks that have different numbers of tokens: the harmonic mean of the sizes makes both estimates unbiased.
TEST(NoiseEstimate, IsUnbiasedForUnevenShares) {
  const KnownGradient known;
  const std::vector<double> shares = {1, 3, 12};
  constexpr int kDraws = 10'000;
  const Random random(5, "noise/uneven");
  std::uint64_t next = 0;
  double sums[2] = {}, squares[2] = {}, all = 0, inverse = 0;
  for (const double share : shares) all += share, inverse += 1 / share / static_cast<double>(shares.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    double small_square = 0, big_square = 0;
    for (std::size_t i = 0; i < known.mean.size(); ++i) {
      double sum = 0;
      for (const double share : shares) {
        const double mean = known.mean[i] + known.deviation[i] / std::sqrt(share) * random.normal(next++);
        small_square += mean * mean / static_cast<double>(shares.size());
        sum += share * mean;
      }
      big_square += std::pow(sum / all, 2);
    }
    NoiseAverage one;
    one.add(noise_estimate(small_square, 1 / inverse, big_square, all), 0);
    const double found[2] = {one.gradient_square(), one.trace()};
    for (int k = 0; k < 2; ++k) sums[k] += found[k], squares[k] += found[k] * found[k];
  }
  const double truth[2] = {known.square(), known.trace()};
  for (int k = 0; k < 2; ++k) {
    const double mean = sums[k] / kDraws, variance = squares[k] / kDraws - mean * mean;
    EXPECT_NEAR(mean, truth[k], 3 * std::sqrt(variance / kDraws)) << (k == 0 ? "gradient" : "trace");
  }
}

/// Experts that several ranks share have their rows together as a small batch, dense parameters each rank's own: the
/// sum of both parts' estimates is unbiased for the whole.
TEST(NoiseEstimate, IsUnbiasedForPartsWithSmallBatchesOfTheirOwn) {
  const KnownGradient known;  // the first two numbers are dense, the others an expert's
  for (const int sharing : {2, 4}) {
    constexpr int kRanks = 8, kDraws = 10'000;
    constexpr double kTokens = 4;
    const Random random(23, "noise/experts/" + std::to_string(sharing));
    std::uint64_t next = 0;
    double sums[2] = {}, squares[2] = {};
    for (int draw = 0; draw < kDraws; ++draw) {
      double small_square[2] = {}, big_square[2] = {};
      for (std::size_t i = 0; i < known.mean.size(); ++i) {
        const std::size_t part = i / 2;
        const int together = part == 0 ? 1 : sharing;
        double sum = 0, of_batch = 0;
        for (int rank = 0; rank < kRanks; ++rank) {
          const double one = known.mean[i] + known.deviation[i] / std::sqrt(kTokens) * random.normal(next++);
          sum += one;
          of_batch += one / together;
          if ((rank + 1) % together != 0) continue;
          small_square[part] += of_batch * of_batch * together / kRanks;
          of_batch = 0;
        }
        big_square[part] += std::pow(sum / kRanks, 2);
      }
      const double big = kTokens * kRanks;
      NoiseAverage one;
      one.add(noise_estimate(small_square[0], kTokens, big_square[0], big) +
                  noise_estimate(small_square[1], kTokens * sharing, big_square[1], big),
              0);
      const double found[2] = {one.gradient_square(), one.trace()};
      for (int k = 0; k < 2; ++k) sums[k] += found[k], squares[k] += found[k] * found[k];
    }
    const double truth[2] = {known.square(), known.trace()};
    for (int k = 0; k < 2; ++k) {
      const double mean = sums[k] / kDraws, variance = squares[k] / kDraws - mean * mean;
      EXPECT_NEAR(mean, truth[k], 3 * std::sqrt(variance / kDraws)) << sharing << (k == 0 ? " gradient" : " trace");
    }
  }
}

TEST(NoiseEstimate, AveragesNumeratorAndDenominatorApart) {
  NoiseAverage average;
  EXPECT_FALSE(average.scale());
  average.add(noise_estimate(/*small_square=*/3, 10, /*big_square=*/2, 100), 0.9);
  EXPECT_NEAR(average.gradient_square(), (200.0 - 30) / 90, 1e-12) << "the first step's weight is corrected";
  EXPECT_NEAR(average.trace(), 1 / (0.1 - 0.01), 1e-12);
  const double first = average.gradient_square();
  average.add(noise_estimate(5, 10, 1, 100), 0.9);
  EXPECT_NEAR(average.gradient_square(), (0.9 * 0.1 * first + 0.1 * (100 - 50) / 90.0) / (1 - 0.81), 1e-12);
  average.add(noise_estimate(std::nan(""), 10, 1, 100), 0.9);
  EXPECT_TRUE(average.scale()) << "a step that is not finite is left out";
}

/// SGD on |theta|^2 / 2 with gradients of known noise, whose rate follows the noise scale as it is measured on the way.
class NoisyQuadratic {
 public:
  struct Run {
    double steps = 0, samples = 0;
  };
  /// Until the loss has fallen tenfold, the mean of several runs. `batch_at(scale)` gives each step's batch.
  template <typename BatchAt>
  Run mean(const BatchAt& batch_at, const std::string& name) const {
    constexpr int kRuns = 32;
    Run mean;
    for (int i = 0; i < kRuns; ++i) {
      const Run run = descend(batch_at, name + "/" + std::to_string(i));
      mean.steps += run.steps / kRuns, mean.samples += run.samples / kRuns;
    }
    return mean;
  }
  template <typename BatchAt>
  Run descend(const BatchAt& batch_at, const std::string& name) const {
    const Random random(11, "quadratic/" + name);
    std::uint64_t next = 0;
    std::vector<double> theta(kSize, 1 / std::sqrt(static_cast<double>(kSize)));
    NoiseAverage average;
    double scale = kTrace;  // at the start, where |G|^2 = 1
    Run run;
    double square = 1;
    while (square > 0.1) {
      const double batch = batch_at(scale);
      double small_square = 0, big_square = 0;
      std::vector<double> gradient(kSize);
      for (std::size_t i = 0; i < kSize; ++i) {
        const double deviation = std::sqrt(kTrace / kSize / (batch / 2));
        const double one = theta[i] + deviation * random.normal(next++);
        const double other = theta[i] + deviation * random.normal(next++);
        small_square += (one * one + other * other) / 2;
        gradient[i] = (one + other) / 2;
        big_square += gradient[i] * gradient[i];
      }
      average.add(noise_estimate(small_square, batch / 2, big_square, batch), 0.98);
      if (run.steps > 50) scale = average.scale().value_or(scale);
      // The best rate (eq. 2.6), a small part of it, so that many steps are one curve.
      const double rate = kPace / (1 + scale / batch);
      square = 0;
      for (std::size_t i = 0; i < kSize; ++i) {
        theta[i] -= rate * gradient[i];
        square += theta[i] * theta[i];
      }
      run.steps += 1;
      run.samples += batch;
    }
    return run;
  }

  static constexpr double kTrace = 64;  // of the gradient's covariance

 private:
  static constexpr std::size_t kSize = 32;
  static constexpr double kPace = 0.004;
};

/// (S / S_min - 1)(E / E_min - 1) = 1 (McCandlish et al. 2018, eq. 2.11), for every batch, and for one that follows.
TEST(NoiseScaleLaw, StepsAndSamplesLieOnTheHyperbola) {
  const NoisyQuadratic quadratic;
  std::vector<double> batches = {24, 48, 96, 192, 384, 768, 1536};
  std::vector<NoisyQuadratic::Run> runs;
  for (const double batch : batches)
    runs.push_back(quadratic.mean([&](double) { return batch; }, std::to_string(batch)));
  // S = S_min (1 + B_crit / B): a line in 1 / B, fitted with equal relative weights.
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const double weight = 1 / (runs[i].steps * runs[i].steps), at = 1 / batches[i];
    w += weight, x += weight * at, y += weight * runs[i].steps;
    xx += weight * at * at, xy += weight * at * runs[i].steps;
  }
  const double slope = (w * xy - x * y) / (w * xx - x * x), least_steps = (y - slope * x) / w, least_samples = slope;
  const auto product = [&](const NoisyQuadratic::Run& run) {
    return (run.steps / least_steps - 1) * (run.samples / least_samples - 1);
  };
  // Of batches far from the critical one, one factor is a small difference of large numbers.
  const double critical = least_samples / least_steps;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (batches[i] <= critical / 4 || batches[i] >= 4 * critical) continue;
    EXPECT_NEAR(product(runs[i]), 1, 0.15) << "batch " << batches[i];
  }
  // The noise scale grows from 64 to 640 as |G|^2 falls tenfold; its mean over equal ratios is (640 - 64) / ln 10.
  EXPECT_NEAR(critical, (640 - 64) / std::log(10.0), 0.15 * 250);
  const spec::BatchConfig following{.kind = spec::BatchKind::kNoise, .global_batch_tokens = 32, .maximum = 2048};
  const NoisyQuadratic::Run followed = quadratic.mean(
      [&](double scale) { return static_cast<double>(spec::batch_for_noise(following, scale)); }, "followed");
  EXPECT_LT(product(followed), 1.15) << "a batch that follows is as good as the best constant one";
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
