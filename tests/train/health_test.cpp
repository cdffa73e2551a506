#include "trireme/train/run/health.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>

#include "trireme/comm/rank.h"
#include "trireme/layout/placing.h"
#include "trireme/train/run/rank_watch.h"

namespace trireme::train {
namespace {

TEST(LossWatch, KnowsASpikeFromARipple) {
  const spec::HealthConfig config{.spike_deviations = 6, .spike_window = 20};
  LossWatch watch(config);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(watch.judge(3 + 0.1 * std::sin(i)), "");
  EXPECT_EQ(watch.judge(3.2), "");
  EXPECT_EQ(watch.judge(0.5), "");  // better is never anomalous
  LossWatch calm(config);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(calm.judge(3 + 0.1 * std::sin(i)), "");
  EXPECT_THAT(calm.judge(5), testing::HasSubstr("standard deviations"));
  EXPECT_NE(calm.judge(5), "");  // spikes do not become the rule
  EXPECT_EQ(calm.judge(3.1), "");
}

TEST(LossWatch, GoesOnAsItWould) {
  const spec::HealthConfig config{.spike_deviations = 3, .spike_window = 5};
  LossWatch first(config), second(config);
  nn::State a, b;
  first.add_state(a);
  second.add_state(b);
  for (int i = 0; i < 7; ++i) first.judge(2 + 0.01 * i);
  b.value("health/losses").set(a.value("health/losses").get());
  EXPECT_NE(first.judge(2.2), "");
  EXPECT_NE(second.judge(2.2), "");
  EXPECT_EQ(first.judge(2.06), second.judge(2.06));
}

TEST(Copies, TheOddOneIsNamed) {
  const layout::Mesh mesh = layout::parse_mesh("dp=3");
  std::mutex mutex;
  std::vector<std::vector<OddCopy>> found;
  comm::run_ranks(3, [&](comm::Rank& rank) {
    nn::State state;
    const at::Tensor weights = at::full({100}, 1.5, at::kFloat), split = at::full({10}, rank.rank(), at::kFloat);
    state.add("param/w", weights, layout::Placing(mesh, rank.rank(), "param/w", {100}).placement());
    state.add("optim/m", split, layout::Placing(mesh, rank.rank(), "optim/m", {30}).split(0, "dp").placement());
    EXPECT_TRUE(compare_copies(state, rank.world()).empty());
    if (rank.rank() == 1) weights.data_ptr<float>()[77] = 1.50001F;
    auto odd = compare_copies(state, rank.world());
    const std::lock_guard lock(mutex);
    found.push_back(std::move(odd));
  });
  for (const auto& odd : found) {
    ASSERT_EQ(odd.size(), 1U);
    EXPECT_EQ(to_text(odd[0]), "param/w on rank 1 differs from ranks 0, 2");
  }
}

TEST(Copies, OfTwoNeitherIsBelieved) {
  const layout::Mesh mesh = layout::parse_mesh("dp=2");
  comm::run_ranks(2, [&](comm::Rank& rank) {
    nn::State state;
    state.add("w", at::full({4}, rank.rank(), at::kFloat), layout::Placing(mesh, rank.rank(), "w", {4}).placement());
    const auto odd = compare_copies(state, rank.world());
    ASSERT_EQ(odd.size(), 1U);
    EXPECT_EQ(to_text(odd[0]), "w differs between ranks 0, 1");
  });
}

TEST(Stragglers, AreNamedByTheMedian) {
  EXPECT_TRUE(slow_ranks({1, 1.1, 0.9, 1.2}, 2).empty());
  const auto slow = slow_ranks({1, 1.1, 0.9, 2.5}, 2);
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_EQ(slow[0].rank, 3);
  EXPECT_NEAR(slow[0].times, 2.5, 1e-12);
  EXPECT_EQ(slow_ranks({1, 3}, 2).size(), 1U);
}

}  // namespace
}  // namespace trireme::train
