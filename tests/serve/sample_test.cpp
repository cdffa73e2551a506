// Drawing a token from logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/random.h"
#include "trireme/serve/sampler.h"

namespace trireme::serve {
namespace {

using Sampling = SamplingParams;
const std::vector<float> kLogits = {0.5F, 2.0F, -1.0F, 2.0F, 1.0F, -3.0F};

/// How often each token comes when the draws are evenly spread over [0, 1): its probability, to within one draw.
std::vector<double> shares(const Sampling& sampling, int draws = 20000) {
  std::vector<double> out(kLogits.size());
  for (int i = 0; i < draws; ++i) ++out[static_cast<std::size_t>(sample(kLogits, sampling, (i + 0.5) / draws))];
  for (double& share : out) share /= draws;
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
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 2e-4) << "token " << i;
}

TEST(Sample, WithoutTemperatureIsTheLikeliestAndTheLowestOfEquals) {
  for (const double draw : {0.0, 0.3, 0.999999}) {
    EXPECT_EQ(sample(kLogits, {.temperature = 0}, draw), 1);
    EXPECT_EQ(sample(kLogits, {.temperature = 5, .top_k = 1}, draw), 1);
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

TEST(Sample, TakesEveryDrawAndHugeLogits) {
  const std::vector<float> huge = {3e38F, -3e38F, 0.0F};
  for (const double draw : {0.0, 0.5, std::nextafter(1.0, 0.0)}) {
    EXPECT_EQ(sample(huge, {.temperature = 1}, draw), 0);
    const std::int64_t token = sample(kLogits, {.temperature = 1}, draw);
    EXPECT_TRUE(token >= 0 && token < 6);
  }
  EXPECT_EQ(sample(std::vector<float>{1.0F}, {.temperature = 1}, 0.7), 0);
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
  EXPECT_EQ(sample(equal, {.temperature = 1, .top_p = 0.5}, 0.999999), 2499);
  EXPECT_EQ(sample(equal, {.temperature = 1, .top_p = 0.5}, 0), 0);
  EXPECT_EQ(sample(equal, {.temperature = 1, .top_k = 4000, .top_p = 0.9}, 0.999999), 3599);
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

TEST(Sample, DrawsAreOfTheSeedTheChoiceAndTheToken) {
  EXPECT_EQ(Draws(1, 2).uniform(3), Draws(1, 2).uniform(3));
  EXPECT_NE(Draws(1, 2).uniform(3), Draws(2, 2).uniform(3));
  EXPECT_NE(Draws(1, 2).uniform(3), Draws(1, 3).uniform(3));
  EXPECT_NE(Draws(1, 2).uniform(3), Draws(1, 2).uniform(4));
}

}  // namespace
}  // namespace trireme::serve
