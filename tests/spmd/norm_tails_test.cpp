// Batch norms that run as one with the sum and ReLU after them. On the CPU their arithmetic is the tensor library's;
// what is told from one operator to the other, and what is never made, is the same as on a GPU.
#include "trireme/spmd/norm_tails.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/spmd/nets.h"
#include "tests/spmd/outcome.h"
#include "trireme/plan/graph/annotate.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/random_strategy.h"
#include "trireme/spmd/reference.h"

namespace trireme::spmd {
namespace {

using ::testing::IsEmpty;

NormTails tails_of(const pg::Graph& both, const pg::Strategy& strategy) {
  std::vector<pg::IterationSpace> spaces;
  for (const pg::Op& op : both.ops) spaces.push_back(iteration_space(both, op));
  return norm_tails_of(both, uses_of(both), spaces, links_of(both, strategy.stored), program_of(both, strategy),
                       strategy);
}

std::ptrdiff_t members(const NormTails& tails, TailPart part) {
  return std::ranges::count_if(tails.members, [&](const NormTails::Member& one) { return one.part == part; });
}

/// Bottlenecks with and without a convolution on the skip connection.
pg::Graph small_resnet() { return pg::resnet(50, 1, {.batch = 2, .size = 32, .classes = 4, .width = 16}); }

TEST(NormTails, OfAResNetAreAllItsBatchNorms) {
  const pg::Graph both = with_backward(small_resnet());
  const NormTails tails = tails_of(both, replicated(both, layout::Mesh()));
  EXPECT_EQ(members(tails, TailPart::kRelu), 49);  // 1 + 3 a block
  EXPECT_EQ(members(tails, TailPart::kNorm), 49);
  EXPECT_EQ(members(tails, TailPart::kOther), 4);  // on skip connections
  EXPECT_EQ(members(tails, TailPart::kAdd), 16);
  EXPECT_EQ(members(tails, TailPart::kGradientSum), 15);  // the last block's output is read once
  EXPECT_EQ(std::ranges::count(tails.unmade, true), 53 + 16 + 33 + 15);
}

TEST(NormTails, AreNotWhereStatisticsAreSharedOrOperatorsRecomputed) {
  const pg::Graph both = with_backward(residual_block());
  const auto by_sample = mesh_tensorflow(residual_block(), layout::parse_mesh("a=2"), {{"n", "a"}});
  EXPECT_EQ(members(tails_of(both, by_sample), TailPart::kRelu), 0);
  const auto local = with_backward(with_local_norms(residual_block()));
  EXPECT_EQ(members(tails_of(local, by_sample), TailPart::kRelu), 3);
  const auto by_channel = mesh_tensorflow(residual_block(), layout::parse_mesh("a=2"), {{"out", "a"}});
  EXPECT_GT(members(tails_of(both, by_channel), TailPart::kRelu), 0);
}

void expect_equal(const pg::Graph& forward, const std::vector<pg::Strategy>& strategies) {
  const pg::Graph both = with_backward(with_dtype(forward, pg::DType::kFp64));
  const Values start = start_values(both, 1);
  const Reference reference = run_reference(both, start, 5, 0);
  for (const Outcome& outcome : run_strategies(both, strategies, start, reference, /*fused_images=*/true)) {
    ASSERT_NEAR(outcome.loss, outcome.expected, 1e-9);
    ASSERT_LT(outcome.worst, 1e-9) << outcome.parameter;
    ASSERT_GT(outcome.compared, 3U);
    ASSERT_THAT(outcome.deviations, IsEmpty());
  }
}

TEST(NormTails, ComputeWhatTheWholeGraphComputes) {
  for (const pg::Graph& forward : {residual_block(), window_net(), small_resnet()}) {
    SCOPED_TRACE(forward.name);
    expect_equal(forward, {replicated(with_backward(forward), layout::Mesh())});
  }
}

TEST(NormTails, ComputeItUnderRandomStrategies) {
  const pg::Graph both = with_backward(residual_block());
  std::vector<pg::Strategy> strategies;
  std::ptrdiff_t found = 0;
  for (std::uint64_t i = 0; i < 24; ++i) {
    strategies.push_back(random_strategy(both, layout::parse_mesh("a=2 b=2"), i, /*wholeness=*/20));
    found += members(tails_of(both, strategies.back()), TailPart::kRelu);
  }
  EXPECT_GT(found, 4) << "strategies that leave a norm whole";
  expect_equal(residual_block(), strategies);
}

}  // namespace
}  // namespace trireme::spmd
