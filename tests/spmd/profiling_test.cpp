// Profiles measured on ranks cover what predictions ask for; cells of an LSTM that share their weights go together.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nets.h"
#include "outcome.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/predict.h"
#include "trireme/plan/graph/random_strategy.h"
#include "trireme/plan/graph/search/cost_table.h"
#include "trireme/spmd/commands.h"
#include "trireme/spmd/lstm_groups.h"

namespace trireme::spmd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

pg::OperatorProfile profiled(std::vector<ProfileTask> tasks, int ranks) {
  const ProfileRequest request{.tasks = std::move(tasks), .seconds = 0, .local_ranks = ranks};
  std::vector<pg::OperatorProfile> profiles(static_cast<std::size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Rank& rank) {
    profiles[static_cast<std::size_t>(rank.rank())] = trireme_spmd()->profile(request, rank);
  });
  for (const pg::OperatorProfile& profile : profiles) EXPECT_EQ(profile, profiles[0]) << "all ranks have the same";
  for (const auto& [key, seconds] : profiles[0].seconds) {
    EXPECT_GE(seconds, key == pg::kBetweenOperators ? 0 : 1e-9) << key;
    EXPECT_LT(seconds, 10) << key;
  }
  return profiles[0];
}

TEST(ProfileOperators, MeasuresAllThatAPredictionOfTheStrategyAsksFor) {
  const std::pair<const char*, pg::Graph> nets[] = {
      {"windows", window_net()},
      {"mixed", mixed_net()},
      {"residual", residual_block()},
      {"lstm", pg::lstm_language_model({.batch = 4, .steps = 3, .layers = 2, .hidden = 8, .vocab = 12})},
      {"gnmt", pg::gnmt({.batch = 4, .steps = 2, .layers = 3, .hidden = 8, .vocab = 12})},
      {"moe", pg::moe({.groups = 4, .tokens = 4, .hidden = 8, .heads = 2, .ffn = 8, .experts = 4})},
      {"bert",
       pg::bert("bert", {.batch = 4, .seq_len = 4, .layers = 1, .hidden = 8, .heads = 4, .vocab = 8, .positions = 4})}};
  const layout::Mesh mesh = layout::parse_mesh("a=2 b=2");
  for (const auto& [name, forward] : nets) {
    const pg::Graph both = with_backward(forward);
    std::vector<ProfileTask> tasks;
    for (const std::uint64_t seed : {1U, 2U}) tasks.push_back({both, random_strategy(both, mesh, seed)});
    const std::vector<ProfileTask> copy = tasks;
    const pg::OperatorProfile profile = profiled(std::move(tasks), 4);
    for (const ProfileTask& task : copy) {
      const pg::Pricing pricing(cost::load_hardware("local"), mesh, cost::Arithmetic::kFp32, &profile);
      const pg::Prediction step = predict(both, task.strategy, pricing);
      EXPECT_EQ(step.priced, 0U) << name;
      EXPECT_GT(step.measured, both.ops.size()) << name;
    }
    EXPECT_EQ(pg::parse_profile(to_text(profile), "p").seconds.size(), profile.seconds.size());
  }
}

TEST(ProfileOperators, OfAllChoicesPricesEveryEntryOfASearch) {
  const pg::Graph both = with_backward(residual_block());
  const layout::Mesh mesh = layout::parse_mesh("a=2");
  std::vector<ProfileTask> tasks;
  for (pg::Strategy& strategy : pg::strategies_of_choices(both, mesh))
    tasks.push_back({both, std::move(strategy), /*conversions=*/false});
  const pg::OperatorProfile profile = profiled(std::move(tasks), 2);
  const pg::GraphProblem problem = make_problem(
      both, pg::Pricing(cost::load_hardware("local"), mesh, cost::Arithmetic::kFp32, &profile), {.reduced = true});
  std::vector<pg::IterationSpace> spaces;
  for (const pg::Op& op : both.ops) spaces.push_back(iteration_space(both, op));
  for (std::size_t node = 0; node < problem.nodes.size(); ++node) {
    for (std::size_t choice = 0; choice < problem.choices[node].size(); ++choice) {
      pg::Assignment assignment(problem.nodes.size(), 0);
      assignment[node] = static_cast<int>(choice);
      const pg::Strategy strategy = problem.strategy_of(both, assignment);
      for (const int op : problem.nodes[node]) {
        const auto at = static_cast<std::size_t>(op);
        const std::vector<int> degrees = degrees_of(mesh, spaces[at], strategy.splits[at]);
        const std::string key = profile_key(both, both.ops[at], spaces[at], degrees);
        EXPECT_TRUE(profile.of(key)) << key;
      }
    }
  }
}

TEST(LstmGroups, AreTheCellsOfALayerWhoseInputsLieAsTheyWantThem) {
  const pg::Graph forward = pg::lstm_language_model({.batch = 4, .steps = 3, .layers = 2, .hidden = 8, .vocab = 12}),
                  both = with_backward(forward);
  std::vector<pg::IterationSpace> spaces;
  for (const pg::Op& op : both.ops) spaces.push_back(iteration_space(both, op));
  const auto groups_of = [&](const pg::Strategy& strategy) {
    return lstm_groups_of(both, spaces, links_of(both, strategy.stored), strategy).cells;
  };
  const layout::Mesh mesh = layout::parse_mesh("a=2");
  const auto whole = groups_of(replicated(forward, mesh));
  ASSERT_THAT(whole, SizeIs(2));
  EXPECT_THAT(whole[0], SizeIs(3));
  EXPECT_THAT(whole[1], SizeIs(3));
  // Units split: a cell's h has a part of them, and the next layer wants all of it.
  pg::Strategy by_units = replicated(forward, mesh);
  for (std::size_t i = 0; i < forward.ops.size(); ++i) {
    const int units = both.find_dim("lstm0.hidden");
    if (forward.ops[i].name.starts_with("lstm0.")) by_units.splits[i][0] = units;
  }
  const auto split = groups_of(by_units);
  ASSERT_THAT(split, SizeIs(1)) << "the first layer's inputs are whole";
  EXPECT_EQ(both.op(split[0][0]).name, "lstm0.0");
}

/// Grouped and one by one are the same numbers to rounding, whatever the strategy.
TEST(LstmGroups, ComputeWhatTheWholeGraphComputes) {
  const pg::Graph forward = with_dtype(
      pg::lstm_language_model({.batch = 4, .steps = 5, .layers = 3, .hidden = 8, .vocab = 12}), pg::DType::kFp64);
  const pg::Graph both = with_backward(forward);
  const Values start = start_values(both, 1);
  const Reference reference = run_reference(both, start, 5, 0);
  const layout::Mesh mesh = layout::parse_mesh("a=2");
  std::vector<pg::Strategy> strategies{replicated(forward, mesh)};
  for (std::uint64_t seed = 0; seed < 8; ++seed) strategies.push_back(random_strategy(both, mesh, seed));
  for (const Outcome& outcome : run_strategies(both, strategies, start, reference)) {
    EXPECT_NEAR(outcome.loss, outcome.expected, 1e-10);
    EXPECT_LT(outcome.worst, 1e-10) << outcome.parameter;
    EXPECT_THAT(outcome.deviations, IsEmpty());
  }
}

}  // namespace
}  // namespace trireme::spmd
