// Codes of compressed gradients by themselves: what they say, how long they are, what they leave.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "trireme/base/random.h"
#include "trireme/parallel/compress/delta_code.h"
#include "trireme/parallel/compress/onebit_code.h"
#include "trireme/parallel/compress/outer_step.h"
#include "trireme/parallel/compress/power_iteration.h"
#include "trireme/parallel/compress/qsgd_code.h"
#include "trireme/parallel/compress/top_k.h"

namespace trireme::parallel {
namespace {

template <typename T>
std::vector<T> normal_draws(std::size_t count, const char* stream) {
  std::vector<T> values(count);
  Random(5, stream).fill_normal(0, std::span<T>(values));
  return values;
}

template <typename T>
void expect_rows_lose_nothing(double within) {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 7}, {5, 64}, {4, 131}}) {
    const auto count = static_cast<std::size_t>(rows * columns);
    const auto gradient = normal_draws<T>(count, "gradient"), kept = normal_draws<T>(count, "kept");
    std::vector<T> next(count), decoded(count, T(0));
    Message message;
    const CodeError error = encode_rows(gradient.data(), kept.data(), next.data(), rows, columns, message);
    EXPECT_EQ(static_cast<std::int64_t>(message.size()), row_code_bytes(rows, columns, sizeof(T)));
    MessageReader reader(message);
    add_rows(reader, rows, columns, decoded.data());
    EXPECT_EQ(reader.left(), 0U);
    double left = 0;
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(static_cast<double>(decoded[i] + next[i]), static_cast<double>(gradient[i] + kept[i]), within);
      left += static_cast<double>(next[i]) * static_cast<double>(next[i]);
    }
    EXPECT_NEAR(error.left, left, 1e4 * within * (1 + left));
  }
}

/// What was sent and what is kept are what there was, whatever the shape.
TEST(OnebitRows, LoseNothing) {
  expect_rows_lose_nothing<double>(1e-14);
  expect_rows_lose_nothing<float>(1e-6);
}

/// The means of the entries >= 0 and of those below; a row of one sign divides by nothing.
TEST(OnebitRows, HaveTwoMeans) {
  const std::vector<float> gradient{1, 3, -4, -2, 0, 2, 4, 6, -1, -3, -5, -7, 0, 0, 0, 0}, none(16, 0.0F);
  std::vector<float> next(16), decoded(16, 0.0F);
  Message message;
  encode_rows(gradient.data(), none.data(), next.data(), 4, 4, message);
  MessageReader reader(message);
  add_rows(reader, 4, 4, decoded.data());
  EXPECT_THAT(decoded, testing::ElementsAre(2, 2, -3, -3, 3, 3, 3, 3, -4, -4, -4, -4, 0, 0, 0, 0));
}

/// Unused embedding rows and padding: variance 0, neither moved nor counted.
TEST(ScaledSigns, LeaveElementsWithoutVarianceAlone) {
  const std::vector<double> values{3, -4, 100, 0}, kept(4, 0.0), variance{1, 2, 0, 5};
  std::vector<double> next(4), decoded(4, 0.0);
  Message message;
  encode_scaled(values.data(), kept.data(), next.data(), variance.data(), 4, message);
  MessageReader reader(message);
  add_scaled(reader, variance.data(), 4, 1.0, decoded.data());
  const double scale = std::sqrt(25.0 / 3);  // three elements move, and sign(0) is +1
  EXPECT_THAT(decoded, testing::ElementsAre(scale, -scale, 0, scale));
  EXPECT_EQ(next[2], 0);
  EXPECT_NEAR(next[0], 3 - scale, 1e-14);
}

/// A quadratic whose first coordinate has gradients of +-10 and whose second one has 3 in one step of four and -1 else.
/// Most signs of the second one are wrong, and all are as large as the first: what feeds its errors back finds the
/// minimum at 0 nevertheless, what does not stays where most signs change.
TEST(ScaledSigns, FindTheMinimumByErrorFeedbackOnly) {
  const auto mean_of_second = [](bool feedback) {
    std::vector<double> x{1, 1}, residual(2, 0.0);
    const std::vector<double> none(2, 0.0), variance(2, 1.0);
    double sum = 0;
    for (int step = 0; step < 8000; ++step) {
      const std::vector<double> gradient{x[0] + (step % 2 == 1 ? 10 : -10), x[1] + (step % 4 == 0 ? 3 : -1)};
      std::vector<double> next(2), decoded(2, 0.0);
      Message message;
      encode_scaled(gradient.data(), feedback ? residual.data() : none.data(), next.data(), variance.data(), 2,
                    message);
      MessageReader reader(message);
      add_scaled(reader, variance.data(), 2, 1.0, decoded.data());
      residual = next;
      for (std::size_t i = 0; i < 2; ++i) x[i] -= 1e-3 * decoded[i];
      if (step >= 4000) sum += x[1];
    }
    return sum / 4000;
  };
  EXPECT_NEAR(mean_of_second(true), 0, 0.01);
  EXPECT_GT(mean_of_second(false), 0.9);
}

TEST(OmegaCodes, AreThoseOfThePaper) {
  EXPECT_EQ(omega_bits(1), 1);
  EXPECT_EQ(omega_bits(2), 3);
  EXPECT_EQ(omega_bits(4), 6);
  EXPECT_EQ(omega_bits(16), 11);
  Message message;
  std::vector<std::uint64_t> numbers(3000);
  std::iota(numbers.begin(), numbers.end(), 1U);
  for (int bit = 12; bit < 50; ++bit)
    numbers.push_back((std::uint64_t{1} << bit) - 1), numbers.push_back(numbers.back() + 1);
  {
    BitWriter writer(message);
    for (const std::uint64_t number : numbers) writer.put_omega(number);
  }
  BitReader reader(message.data(), message.size());
  for (const std::uint64_t number : numbers) ASSERT_EQ(reader.take_omega(), number);
}

spec::CompressConfig qsgd_config(int levels, spec::QsgdNorm norm, spec::QsgdCoding coding, std::int64_t bucket = 512) {
  return {.kind = spec::CompressKind::kQsgd, .levels = levels, .norm = norm, .bucket_size = bucket, .coding = coding};
}

/// Every draw says levels of the norm; codes of both kinds say the same.
TEST(Qsgd, CodesAreRead) {
  std::vector<std::vector<float>> edges{std::vector<float>(700, 0.0F), {1e-30F}, {-5}, std::vector<float>(513, 2.0F)};
  edges.push_back(normal_draws<float>(100'000, "qsgd"));
  edges.push_back(std::vector<float>(2000, 0.0F));
  edges.back()[1999] = -3;
  for (const int levels : {1, 7, 127}) {
    for (const auto norm : {spec::QsgdNorm::kMax, spec::QsgdNorm::kL2}) {
      for (const std::vector<float>& values : edges) {
        const auto count = static_cast<std::int64_t>(values.size());
        const QsgdDraws draws = qsgd_draws(1, "w", 0, 3, 2);
        std::vector<std::vector<float>> said;
        for (const auto coding : {spec::QsgdCoding::kFixed, spec::QsgdCoding::kElias}) {
          const auto config = qsgd_config(levels, norm, coding);
          Message message;
          encode_qsgd(values.data(), count, config, draws, message);
          MessageReader reader(message);
          add_qsgd(reader, count, config, said.emplace_back(values.size(), 0.0F).data());
          EXPECT_EQ(reader.left(), 0U);
        }
        ASSERT_EQ(said[0], said[1]) << levels << " of " << count;
        for (std::size_t i = 0; i < values.size(); ++i) ASSERT_GE(said[0][i] * values[i], 0.0F);
      }
    }
  }
}

TEST(Qsgd, CodesOfAMillionAreRead) {
  constexpr std::int64_t kCount = 1'000'000;
  const auto values = normal_draws<float>(kCount, "million");
  std::vector<std::vector<float>> said;
  for (const auto coding : {spec::QsgdCoding::kFixed, spec::QsgdCoding::kElias}) {
    const auto config = qsgd_config(7, spec::QsgdNorm::kMax, coding);
    Message message;
    encode_qsgd(values.data(), kCount, config, qsgd_draws(1, "w", 0, 3, 2), message);
    MessageReader reader(message);
    add_qsgd(reader, kCount, config, said.emplace_back(values.size(), 0.0F).data());
    EXPECT_EQ(reader.left(), 0U);
  }
  EXPECT_TRUE(said[0] == said[1]);
  // Of 512 normal numbers the largest is about 3, so that levels are about 0.43 apart.
  double error = 0;
  for (std::size_t i = 0; i < values.size(); ++i)
    error += std::pow(static_cast<double>(said[0][i] - values[i]), 2) / kCount;
  EXPECT_GT(error, 0.01);
  EXPECT_LT(error, 0.25 * 0.5 * 0.5);
}

/// Other seeds, parameters, shards, steps and copies draw other numbers.
TEST(Qsgd, DrawsDependOnAllThatTheyAreOf) {
  const std::vector<QsgdDraws> streams{qsgd_draws(1, "w", 0, 3, 2), qsgd_draws(2, "w", 0, 3, 2),
                                       qsgd_draws(1, "v", 0, 3, 2), qsgd_draws(1, "w", 1, 3, 2),
                                       qsgd_draws(1, "w", 0, 4, 2), qsgd_draws(1, "w", 0, 3, 1)};
  std::vector<double> first(64), other(64);
  streams.front().fill(0, first);
  for (std::size_t stream = 1; stream < streams.size(); ++stream) {
    streams[stream].fill(0, other);
    for (std::size_t i = 0; i < 64; ++i) EXPECT_NE(first[i], other[i]) << stream << " " << i;
  }
  qsgd_draws(1, "w", 0, 3, 2).fill(0, other);
  EXPECT_EQ(first, other);
}

/// Many draws at once are those one by one, wherever they begin.
TEST(Qsgd, DrawsAreAFunctionOfTheirNumber) {
  const QsgdDraws draws = qsgd_draws(3, "w", 1, 2, 0);
  for (const std::uint64_t begin : {0U, 1U, 62U, 4097U}) {
    for (const std::size_t count : {0U, 1U, 63U, 64U, 65U, 512U}) {
      std::vector<double> many(count);
      draws.fill(begin, many);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(many[i], draws(begin + i)) << begin << " + " << i;
    }
  }
}

/// Theorem 3.2: right in the mean, variance at most min(n / s^2, sqrt(n) / s) |v|^2, at most s (s + sqrt(n)) non-zeros.
TEST(Qsgd, IsUnbiasedWithinItsVariance) {
  constexpr std::int64_t kCount = 64;
  constexpr int kDraws = 20'000, kLevels = 4;
  const auto values = normal_draws<double>(kCount, "unbiased");
  const auto config = qsgd_config(kLevels, spec::QsgdNorm::kL2, spec::QsgdCoding::kFixed);
  double norm = 0;
  for (const double value : values) norm += value * value;
  std::vector<double> sum(kCount, 0.0), squares(kCount, 0.0), uniform(kCount);
  double variance = 0, nonzeros = 0;
  QuantisedBucket<double> bucket;
  for (int draw = 0; draw < kDraws; ++draw) {
    qsgd_draws(1, "w", 0, draw, 0).fill(0, uniform);
    quantise(values.data(), uniform.data(), kCount, config, bucket);
    for (std::size_t i = 0; i < kCount; ++i) {
      const double said = bucket.norm * bucket.levels[i] / kLevels;
      sum[i] += said;
      squares[i] += said * said;
      variance += (said - values[i]) * (said - values[i]) / kDraws;
      nonzeros += bucket.levels[i] != 0 ? 1.0 / kDraws : 0;
    }
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    const double mean = sum[i] / kDraws, deviation = std::sqrt(squares[i] / kDraws - mean * mean);
    EXPECT_LE(std::abs(mean - values[i]), 4 * deviation / std::sqrt(kDraws) + 1e-12) << i;
  }
  EXPECT_LE(variance, std::min(kCount / double{kLevels * kLevels}, std::sqrt(kCount) / kLevels) * norm);
  EXPECT_LE(nonzeros, kLevels * (kLevels + std::sqrt(kCount)));
}

/// Section 3.1: with s = sqrt(n) levels 2.8 n + 32 bits.
TEST(Qsgd, TakesFewBitsWithManyLevels) {
  constexpr std::int64_t kCount = 4096;
  const auto values = normal_draws<float>(kCount, "bits");
  const auto config = qsgd_config(64, spec::QsgdNorm::kL2, spec::QsgdCoding::kElias, kCount);
  double bits = 0;
  for (int step = 0; step < 10; ++step) {
    Message message;
    bits +=
        static_cast<double>(encode_qsgd(values.data(), kCount, config, qsgd_draws(1, "w", 0, step, 0), message)) / 10;
  }
  EXPECT_LE(bits, 2.8 * kCount + 32);
  EXPECT_EQ(fixed_bits(1), 2);
  EXPECT_EQ(fixed_bits(7), 4);
  EXPECT_EQ(fixed_bits(8), 5);
}

TEST(TopK, IsExactWhateverTheSample) {
  auto values = normal_draws<float>(10'000, "top");
  for (std::size_t i = 0; i < 3000; ++i) values[3 * i] = 0.5F;  // ties
  std::vector<std::uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::uint32_t i) { return std::abs(values[i]); });
  for (const std::int64_t k : {0, 1, 10, 1000, 4000, 9999, 10'000, 20'000}) {
    std::vector<std::uint32_t> wanted(order.begin(), order.begin() + std::min<std::int64_t>(k, 10'000));
    std::ranges::sort(wanted);
    for (const double sample : {0.01, 1.0}) EXPECT_EQ(top_k(values.data(), 10'000, k, sample), wanted) << k;
  }
  values[17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(top_k(values.data(), 10'000, 1, 0.01), testing::ElementsAre(17));
}

TEST(TopK, SparsityRisesAsInThePaper) {
  EXPECT_EQ(warmup_sparsity(0.999, 0, 400), 0.75);
  EXPECT_EQ(warmup_sparsity(0.999, 100, 400), 0.9375);
  EXPECT_EQ(warmup_sparsity(0.999, 200, 400), 0.984375);
  EXPECT_NEAR(warmup_sparsity(0.999, 399, 400), 0.996, 1e-3);
  EXPECT_EQ(warmup_sparsity(0.999, 400, 400), 0.999);
  EXPECT_EQ(warmup_sparsity(0.5, 0, 400), 0.5);
  for (const std::int64_t count : {1, 10, 999, 100'000})
    EXPECT_LE(
        std::abs(static_cast<double>(kept_elements(count, 0.999)) - std::max(1.0, 0.001 * static_cast<double>(count))),
        1);
}

TEST(Orthogonalise, MakesColumnsOrthonormalOrZero) {
  at::Tensor columns = random_factor(1, "w", 0, 0, 50, 4, at::kDouble);
  orthogonalise(columns);
  EXPECT_LT((columns.t().matmul(columns).sub(at::eye(4, at::kDouble))).abs().max().item<double>(), 1e-14);
  at::Tensor dependent = random_factor(1, "w", 0, 0, 50, 3, at::kDouble);
  dependent.select(1, 2).copy_(dependent.select(1, 0).mul(-2));
  orthogonalise(dependent);
  EXPECT_EQ(dependent.select(1, 2).abs().max().item<double>(), 0);
  at::Tensor zeros = at::zeros({9, 2}, at::kFloat);
  orthogonalise(zeros);
  EXPECT_EQ(zeros.abs().max().item<double>(), 0);
  renew_zero_columns(zeros, random_factor(1, "w", 0, 1, 9, 2, at::kFloat));
  EXPECT_GT(zeros.abs().min().item<double>(), 0);
}

/// A matrix, or its transpose, times a factor of few columns, in float and double.
TEST(PowerIteration, MultipliesByAFactor) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const std::int64_t rank : {1, 2, 3, 4, 16, 40}) {
      const at::Tensor matrix = random_factor(1, "m", 0, 0, 70, 45, type);
      for (const bool transposed : {false, true}) {
        const at::Tensor factor = random_factor(1, "f", 0, 0, transposed ? 70 : 45, rank, type);
        at::Tensor out = at::empty({transposed ? 45 : 70, rank}, matrix.options()).fill_(9);
        multiply_factor(out, matrix, factor, transposed);
        const at::Tensor wide = matrix.to(at::kDouble), of = factor.to(at::kDouble);
        const at::Tensor expected = transposed ? wide.t().matmul(of) : wide.matmul(of);
        EXPECT_LT((out.to(at::kDouble) - expected).abs().max().item<double>(), type == at::kFloat ? 1e-4 : 1e-12)
            << rank;
      }
    }
  }
}

TEST(Delta, RoundsAndTellsWhatItSaid) {
  for (const auto type : {spec::DeltaDtype::kFp16, spec::DeltaDtype::kInt8}) {
    auto values = normal_draws<double>(1300, "delta");
    const auto exact = values;
    std::vector<double> decoded(values.size(), 0.0);
    Message message;
    encode_delta(values.data(), 1300, type, message);
    MessageReader reader(message);
    add_delta(reader, 1300, type, decoded.data());
    EXPECT_EQ(decoded, values);
    auto floats = normal_draws<float>(1300, "delta");
    const auto exact_floats = floats;
    std::vector<float> decoded_floats(floats.size(), 0.0F);
    Message of_floats;
    encode_delta(floats.data(), 1300, type, of_floats);
    MessageReader float_reader(of_floats);
    add_delta(float_reader, 1300, type, decoded_floats.data());
    EXPECT_EQ(float_reader.left(), 0U);
    EXPECT_EQ(decoded_floats, floats);
    for (std::size_t i = 0; i < floats.size(); ++i)
      EXPECT_NEAR(floats[i], exact_floats[i], type == spec::DeltaDtype::kFp16 ? 3e-3 : 3e-2);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(values[i], exact[i], type == spec::DeltaDtype::kFp16 ? 3e-3 : 3e-2);
    EXPECT_EQ(message.size(), type == spec::DeltaDtype::kFp16 ? 2600U : 1300U + 3 * 8);
  }
}

/// A NaN or Inf makes its block NaN on every copy, and no other block.
TEST(Delta, PassesOnWhatIsNotFinite) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const auto check = [&](auto zero) {
      using T = decltype(zero);
      for (const auto type : {spec::DeltaDtype::kFp16, spec::DeltaDtype::kInt8}) {
        auto values = normal_draws<T>(1300, "delta");
        values[700] = static_cast<T>(bad);
        std::vector<T> decoded(values.size(), T(0));
        Message message;
        encode_delta(values.data(), 1300, type, message);
        MessageReader reader(message);
        add_delta(reader, 1300, type, decoded.data());
        EXPECT_FALSE(std::isfinite(decoded[700]));
        EXPECT_FALSE(std::isfinite(values[700]));
        for (const std::size_t far : {0U, 511U, 1024U, 1299U}) EXPECT_TRUE(std::isfinite(decoded[far])) << far;
      }
    };
    check(float{});
    check(double{});
  }
}

TEST(Diloco, FragmentsAreStridedLayers) {
  EXPECT_EQ(fragment_of("layers.5.mlp.up.weight", 3), 2);
  EXPECT_EQ(fragment_of("encoder.layers.4.attention.wo", 4), 0);
  EXPECT_EQ(fragment_of("embedding.weight", 3), 0);
  EXPECT_EQ(fragment_of("head.weight", 3), 2);
  EXPECT_EQ(fragment_of("norm.weight", 1), 0);
}

}  // namespace
}  // namespace trireme::parallel
