// Drawing a token from logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "trireme/base/random.h"
#include "trireme/serve/sampler.h"

namespace trireme::serve {
namespace {

using Sampling = SamplingParams;
const std::vector<float> kLogits = {0.5F, 2.0F, -1.0F, 2.0F, 1.0F, -3.0F};

constexpr int kDraws = 100000;

/// How often each token comes.
std::vector<double> shares(const Sampling& sampling) {
  const Draws draws(/*seed=*/5, /*choice=*/0);
  std::vector<double> out(kLogits.size());
  for (int i = 0; i < kDraws; ++i)
    ++out[static_cast<std::size_t>(sample(kLogits, sampling, draws.noise(static_cast<std::uint64_t>(i))))];
  for (double& share : out) share /= kDraws;
  return out;
}

/// softmax(logits / temperature) over `kept` tokens, written out.
std::vector<double> softmax(double temperature, const std::set<std::size_t>& kept) {
  std::vector<double> out(kLogits.size());
  double total = 0;
  for (const std::size_t token : kept) total += out[token] = std::exp(kLogits[token] / temperature);
  for (double& share : out) share /= total;
  return out;
}

void expect_near(const std::vector<double>& ours, const std::vector<double>& theirs) {
  // Within five standard deviations; what is left out never comes.
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_NEAR(ours[i], theirs[i], 5 * std::sqrt(theirs[i] * (1 - theirs[i]) / kDraws)) << "token " << i;
}

TEST(Sample, WithoutTemperatureIsTheLikeliestAndTheLowestOfEquals) {
  const Draws draws(1, 0);
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(sample(kLogits, {.temperature = 0}, draws.noise(i)), 1);
    EXPECT_EQ(sample(kLogits, {.temperature = 5, .top_k = 1}, draws.noise(i)), 1);
  }
}

TEST(Sample, FollowsTheSoftmaxAtTheTemperature) {
  for (const double temperature : {0.3, 1.0, 4.0}) {
    expect_near(shares({.temperature = temperature}), softmax(temperature, {0, 1, 2, 3, 4, 5}));
  }
}

TEST(Sample, TopKKeepsTheLikeliest) {
  expect_near(shares({.temperature = 0.7, .top_k = 3}), softmax(0.7, {1, 3, 4}));
  expect_near(shares({.temperature = 0.7, .top_k = 100}), softmax(0.7, {0, 1, 2, 3, 4, 5}));
}

TEST(Sample, TopPKeepsTheFewestThatHaveTheProbability) {
  const auto all = softmax(1, {0, 1, 2, 3, 4, 5});  // about 0.07 0.35 0.02 0.35 0.13 0.00... in order 1 3 4 0 2 5
  ASSERT_GT(all[1] + all[3], 0.6);
  expect_near(shares({.temperature = 1, .top_p = 0.6}), softmax(1, {1, 3}));
  expect_near(shares({.temperature = 1, .top_p = all[1] + all[3] + 0.01}), softmax(1, {1, 3, 4}));
  expect_near(shares({.temperature = 1, .top_p = 1e-9}), softmax(1, {1}));
  expect_near(shares({.temperature = 1, .top_p = 1}), all);
  // After top-k, of what it left.
  expect_near(shares({.temperature = 1, .top_k = 3, .top_p = 0.999}), softmax(1, {1, 3, 4}));
}

TEST(Sample, TakesHugeLogitsAndTemperatures) {
  const Draws draws(1, 0);
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<float> huge = {3e38F, -3e38F, 0.0F}, excluded = {none, 1.0F, none, 1.0F};
  std::set<std::int64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(sample(huge, {.temperature = 1}, draws.noise(i)), 0);
    EXPECT_EQ(sample(huge, {.temperature = 1e-300}, draws.noise(i)), 0);
    seen.insert(sample(excluded, {.temperature = 1e300}, draws.noise(i)));
    EXPECT_EQ(sample(std::vector<float>{1.0F}, {.temperature = 1}, draws.noise(i)), 0);
  }
  EXPECT_THAT(seen, testing::ElementsAre(1, 3));
}

std::vector<float> random_logits(std::size_t count, double spread, std::uint64_t seed) {
  const Random random(seed, "logits");
  std::vector<float> logits;
  for (std::size_t i = 0; i < count; ++i) logits.push_back(static_cast<float>(spread * random.normal(i)));
  return logits;
}

std::vector<double> probabilities_of(const std::vector<float>& logits) {
  std::vector<double> out;
  double total = 0;
  for (const float logit : logits) total += out.emplace_back(std::exp(logit));
  for (double& one : out) one /= total;
  return out;
}

/// Tokens that cannot win are passed over many at a time, and the kept ones of a nucleus have noise one by one.
TEST(Sample, DrawsFromAllTokensWhatItDrawsFromSome) {
  std::vector<float> logits = random_logits(1001, 2, 3);
  logits[500] = -100;  // the only one that top-k leaves out
  const Draws draws(7, 1);
  std::set<std::int64_t> seen;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const std::int64_t token = sample(logits, {.temperature = 1.3}, draws.noise(i));
    EXPECT_EQ(sample(logits, {.temperature = 1.3, .top_k = 1000}, draws.noise(i)), token);
    seen.insert(token);
  }
  EXPECT_GT(seen.size(), 200u);
  EXPECT_GT(*seen.rbegin(), 900);
}

/// Coupled by Gumbel noise two models agree with probability sum_i 1 / sum_j max(p_j / p_i, q_j / q_i).
TEST(Sample, ModelsThatAreNearDrawTheSameTokenAsOftenAsTheirNoiseAllows) {
  const std::vector<float> logits = random_logits(300, 2, 4), noise = random_logits(300, 0.5, 5);
  std::vector<float> near = logits;
  for (std::size_t i = 0; i < near.size(); ++i) near[i] += noise[i];
  const auto p = probabilities_of(logits), q = probabilities_of(near);
  double expected = 0, variation = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < p.size(); ++j) sum += std::max(p[j] / p[i], q[j] / q[i]);
    expected += 1 / sum;
    variation += 0.5 * std::abs(p[i] - q[i]);
  }
  EXPECT_GT(expected, (1 - variation) / (1 + variation));
  EXPECT_GT(expected, 0.7);
  const Draws draws(9, 0);
  constexpr int kPairs = 20000;
  int same = 0;
  for (std::uint64_t i = 0; i < kPairs; ++i)
    same += sample(logits, {.temperature = 1}, draws.noise(i)) == sample(near, {.temperature = 1}, draws.noise(i));
  EXPECT_NEAR(static_cast<double>(same) / kPairs, expected, 5 * std::sqrt(expected * (1 - expected) / kPairs));
}

TEST(Sample, MinPKeepsWhatIsLikelyEnoughBesideTheLikeliest) {
  // Of the likeliest one's probability: 1 1 e^-1 e^-1.5 e^-3 e^-5.
  expect_near(shares({.temperature = 1, .min_p = 0.3}), softmax(1, {1, 3, 4}));
  expect_near(shares({.temperature = 1, .min_p = 0.2}), softmax(1, {0, 1, 3, 4}));
  expect_near(shares({.temperature = 1, .min_p = 1}), softmax(1, {1, 3}));
  expect_near(shares({.temperature = 1, .top_k = 1, .min_p = 0.1}), softmax(1, {1}));
}

TEST(Sample, ANucleusOfManyTokensIsFoundToo) {
  // 5000 equal tokens: half the probability is 2500 of them, far beyond what is sorted at first.
  const std::vector<float> equal(5000, 1.0F);
  const Draws draws(2, 0);
  std::int64_t half = 0, most = 0, least = 5000;
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::int64_t token = sample(equal, {.temperature = 1, .top_p = 0.5}, draws.noise(i));
    half = std::max(half, token), least = std::min(least, token);
    most = std::max(most, sample(equal, {.temperature = 1, .top_k = 4000, .top_p = 0.9}, draws.noise(i)));
  }
  EXPECT_LT(least, 100);
  EXPECT_TRUE(2400 < half && half < 2500) << half;
  EXPECT_TRUE(3500 < most && most < 3600) << most;
}

TEST(Sample, PenaltiesCountAsTheirAuthorsDo) {
  TokenCounts counts;
  counts.add_prompt(std::vector<std::int64_t>{1, 1, 4});
  counts.add_generated(3);
  counts.add_generated(3);
  std::vector<float> logits = kLogits;
  adjust(logits, {.presence_penalty = 0.5, .frequency_penalty = 0.25, .logit_bias = {{5, 2.0}}}, counts);
  EXPECT_THAT(logits, testing::ElementsAre(0.5F, 2.0F, -1.0F, 1.0F, 1.0F, -1.0F));  // OpenAI: generated ones alone
  logits = kLogits;
  counts.add_prompt(std::vector<std::int64_t>{2});
  adjust(logits, {.repetition_penalty = 2}, counts);
  EXPECT_THAT(logits, testing::ElementsAre(0.5F, 1.0F, -2.0F, 1.0F, 0.5F, -3.0F));  // Hugging Face: all of them
}

TEST(Sample, LogprobsAreTheSoftmaxsLogarithms) {
  const auto expected = softmax(1, {0, 1, 2, 3, 4, 5});
  const Logprobs found = logprobs_of(kLogits, 4, 3);
  EXPECT_NEAR(found.chosen.logprob, std::log(expected[4]), 1e-12);
  ASSERT_EQ(found.top.size(), 3u);
  EXPECT_EQ(found.top[0].token, 1);
  EXPECT_EQ(found.top[1].token, 3);  // equal ones by number
  EXPECT_EQ(found.top[2].token, 4);
  EXPECT_FALSE(can_sample(std::vector<float>{1.0F, NAN}));
  EXPECT_FALSE(can_sample(std::vector<float>{-INFINITY, -INFINITY}));
}

TEST(Sample, NoiseIsOfTheSeedTheChoiceTheTokensNumberAndTheCandidate) {
  const auto noise = [](std::uint64_t seed, std::uint64_t choice, std::uint64_t number, std::int64_t token) {
    return Draws(seed, choice).noise(number).uniform(token);
  };
  EXPECT_EQ(noise(1, 2, 3, 4), noise(1, 2, 3, 4));
  EXPECT_NE(noise(1, 2, 3, 4), noise(2, 2, 3, 4));
  EXPECT_NE(noise(1, 2, 3, 4), noise(1, 3, 3, 4));
  EXPECT_NE(noise(1, 2, 3, 4), noise(1, 2, 4, 4));
  EXPECT_NE(noise(1, 2, 3, 4), noise(1, 2, 3, 5));
}

}  // namespace
}  // namespace trireme::serve
