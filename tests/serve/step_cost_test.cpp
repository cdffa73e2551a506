// The time of a step from its plan, and loads in simulated time.
#include "trireme/serve/step_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/models/support.h"
#include "trireme/base/error.h"
#include "trireme/serve/engine_cost.h"

namespace trireme::serve {
namespace {

StepCost simple_cost() {
  return {
      .prefill = {{1, 1.0}, {4, 1.0}, {8, 2.0}}, .decode = {{1, 1.0}, {4, 1.5}, {8, 3.0}}, .seconds_per_pair = 0.01};
}

StepPlan plan_of(std::vector<PlannedSequence> sequences) {
  StepPlan plan{.sequences = std::move(sequences)};
  for (const PlannedSequence& planned : plan.sequences) plan.tokens += planned.query_len;
  return plan;
}

TEST(StepCost, IsTheCurvesOfRowsAndOfTheHeadAndThePairs) {
  const StepCost cost = simple_cost();
  // One sequence: a chunk of 6 rows, halfway between 4 and 8, and its 6 * 7 / 2 pairs.
  EXPECT_DOUBLE_EQ(cost.seconds(plan_of({{.query_len = 6}})), 1.5 + 0.01 * 21);
  EXPECT_DOUBLE_EQ(cost.seconds(plan_of({{.context_len = 10, .query_len = 6, .samples = true}})),
                   1.5 + 0.01 * (60 + 21));
  // Four that decode: the head's further rows take what decode takes beside prefill.
  const PlannedSequence decodes{.context_len = 9, .query_len = 1, .samples = true};
  EXPECT_DOUBLE_EQ(cost.seconds(plan_of({decodes, decodes, decodes, decodes})), 1.0 + 0.5 + 0.01 * 40);
  // Beyond the last point the line goes on.
  EXPECT_DOUBLE_EQ(cost.seconds(plan_of({{.query_len = 16}})), 4.0 + 0.01 * 136);
  EXPECT_THROW(StepCost{}.seconds(plan_of({decodes})), InternalError);
}

SimulatedRequest arriving(double at, std::int64_t prompt, std::int64_t tokens) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(prompt));
  std::iota(ids.begin(), ids.end(), std::int64_t{100} * static_cast<std::int64_t>(at * 10));
  return {.arrives = at, .request = {.prompt = ids, .max_new_tokens = tokens}};
}

TEST(Simulate, FollowsTheSchedulersPlansInItsOwnTime) {
  StepCost cost = simple_cost();
  cost.seconds_per_pair = 0;
  SchedulerOptions options{.groups = {{.window = 0, .num_blocks = 64}}};
  options.max_batch_tokens = 8;
  // Alone: 8 rows, then two steps of one.
  const std::vector<SimulatedRequest> one{arriving(3, 8, 3)};
  const Simulation alone = simulate(options, one, cost);
  EXPECT_EQ(alone.steps, 3);
  EXPECT_DOUBLE_EQ(alone.requests[0].first_token, 5.0);
  EXPECT_DOUBLE_EQ(alone.requests[0].end, 7.0);
  EXPECT_DOUBLE_EQ(alone.busy, 4.0);
  // The second comes while the first is prefilled, waits for that step, and shares the next two.
  const std::vector<SimulatedRequest> two{arriving(0, 8, 3), arriving(1, 3, 2)};
  const Simulation both = simulate(options, two, cost);
  EXPECT_DOUBLE_EQ(both.requests[0].first_token, 2.0);
  // Step 2: one row that decodes and three of a prompt, two with logits: 1 + the head's second row.
  const double second_row = 1.0 + 0.5 / 3 - 1.0;
  EXPECT_DOUBLE_EQ(both.requests[1].first_token, 2.0 + 1.0 + second_row);
  EXPECT_DOUBLE_EQ(both.requests[1].end, both.requests[0].end);
  EXPECT_DOUBLE_EQ(both.seconds, 2.0 + 2 * (1.0 + second_row));
  EXPECT_THROW(simulate(options, std::vector{arriving(0, 64 * 16, 3)}, cost), ConfigError);
}

/// The same plans as an engine's: prediction and run differ by the points alone.
TEST(Simulate, CountsTheStepsThatAnEngineTakes) {
  auto model = models::build(models::tiny_shape(spec::Family::kLlama));
  models::fill(*model, nn::Precision::kFp32, 3);
  const EngineOptions of{.max_batch_tokens = 24, .max_sequences = 4, .prefill_chunk = 16, .kv_tokens = 256};
  const StepCost cost =
      measure_step_cost(*model, of, {.most_rows = 8, .most_sequences = 4, .context = 20, .rounds = 2});
  ASSERT_EQ(cost.decode.front().rows, 1);
  ASSERT_EQ(cost.prefill.back().rows, 8);
  for (const StepCost::Point& point : cost.decode) EXPECT_GT(point.seconds, 0);
  for (const auto* curve : {&cost.prefill, &cost.decode})
    EXPECT_TRUE(std::ranges::is_sorted(*curve, {}, &StepCost::Point::seconds)) << "more rows take no less";

  InferenceEngine engine(*model, of);
  std::vector<SimulatedRequest> requests;
  for (std::int64_t i = 0; i < 12; ++i) {
    const std::vector<std::int64_t> prompt(static_cast<std::size_t>(3 + 4 * i), i);
    requests.push_back({.request = {.prompt = prompt, .max_new_tokens = 2 + i}});
    EXPECT_EQ(engine.add({.id = static_cast<RequestId>(i), .prompt = prompt, .max_new_tokens = 2 + i}), std::nullopt);
  }
  while (!engine.idle()) engine.step();
  const Simulation predicted = simulate(engine.scheduler().options(), requests, cost);
  EXPECT_EQ(predicted.steps, engine.scheduler().totals().steps);
  EXPECT_GT(predicted.requests.back().end, predicted.requests.front().end);
}

}  // namespace
}  // namespace trireme::serve
