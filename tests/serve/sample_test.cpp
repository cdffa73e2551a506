// Drawing a token from logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/random.h"
#include "trireme/serve/generate.h"

namespace trireme::serve {
namespace {

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

}  // namespace
}  // namespace trireme::serve
