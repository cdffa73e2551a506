// Profiles of operators, and predictions made with them: against sums by hand, and pipelines against GPipe's formula.
#include "trireme/plan/graph/predict.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/profile.h"
#include "trireme/plan/graph/random_strategy.h"
#include "trireme/plan/graph/search/search.h"

namespace trireme::plan::graph {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Links and memory so fast that only what is profiled takes time.
cost::Hardware free_links() {
  cost::Hardware hardware;
  hardware.device.name = "any";
  hardware.device.fp32_tflops = 1e9;
  hardware.device.memory_gib = 1e6;
  hardware.device.memory_gb_per_s = 1e12;
  hardware.device.efficiency.kernel_seconds = 0;
  hardware.cluster.gpus_per_node = 8;
  hardware.cluster.link = {.kind = "none", .gb_per_s = 1e12, .latency_us = 0};
  hardware.cluster.network = {.kind = "none", .gb_per_s = 1e12, .latency_us = 0};
  return hardware;
}

Graph chain(int layers, Index batch) {
  Builder build("chain");
  const int n = build.dim("n", batch);
  int x = build.input("x", {n, build.dim("w0", 8)});
  for (int i = 1; i <= layers; ++i)
    x = build.linear(fmt::format("fc{}", i), x, build.dim(fmt::format("w{}", i), 8), /*bias=*/false);
  build.loss("loss", x, build.indices("labels", {n}), build.dims_of(x)[1]);
  return build.finish();
}

/// Every operator of a graph with a strategy takes that long; conversions twice that.
void add_times(const Graph& both, const Strategy& strategy, double seconds, OperatorProfile& profile) {
  const Lowering lowering = lower(both, strategy);
  std::vector<IterationSpace> spaces;
  for (std::size_t i = 0; i < both.ops.size(); ++i) {
    spaces.push_back(iteration_space(both, both.ops[i]));
    profile.seconds[profile_key(both, both.ops[i], spaces[i], lowering.degrees[i])] = seconds;
  }
  for (const Link& link : links_of(both)) {
    const LinkEnds ends = ends_of(both, spaces, link, strategy);
    const std::vector<int> first(strategy.mesh.axes().size(), 0);
    std::vector<Index> sizes = place_of(both, strategy.mesh, first, link.tensor, ends.from).sizes;
    for (const Step& step : convert(strategy.mesh, both.bytes(both.tensor(link.tensor)), ends.from, ends.to)) {
      int ranks = 1;
      for (const int axis : step.axes) ranks *= strategy.mesh.axes()[static_cast<std::size_t>(axis)].size;
      profile.seconds[profile_key(step, ranks, sizes, both.tensor(link.tensor).dtype)] = 2 * seconds;
      sizes = sizes_after(step, ranks, std::move(sizes));
    }
  }
}

TEST(OperatorProfile, ReadsBackAsItselfAndSaysWhichLineIsWrong) {
  OperatorProfile profile;
  const Graph both = with_backward(alexnet({.batch = 8, .size = 64, .classes = 8, .width = 8}));
  for (const Strategy& strategy : strategies_of_choices(both, layout::parse_mesh("a=2 b=2")))
    add_times(both, strategy, 1.25e-4, profile);
  EXPECT_GT(profile.seconds.size(), 100U);
  EXPECT_EQ(parse_profile(to_text(profile), "p"), profile);
  const auto error_of = [](std::string_view text) -> std::string {
    try {
      parse_profile(text, "p.profile");
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(error_of(""), HasSubstr("is empty"));
  EXPECT_THAT(error_of("profile\n"), HasSubstr("line 1: it does not begin"));
  EXPECT_THAT(error_of("operator-profile\n3 einsum\nx einsum\n"), HasSubstr("line 3: a line is microseconds"));
  EXPECT_THAT(error_of("operator-profile\n-3 einsum\n"), HasSubstr("line 2: a line is microseconds"));
  EXPECT_THAT(error_of("operator-profile\n3 einsum\n4 einsum\n"), HasSubstr("line 3: \"einsum\" stands there twice"));
}

TEST(OperatorProfile, HasOneEntryForOperatorsThatComputeTheSame) {
  const Graph both = with_backward(vgg(16, {.batch = 2, .size = 32, .classes = 8, .width = 8}));
  const auto key = [&](const char* name, Index samples) {
    const Op& op = both.op(both.find_op(name));
    const IterationSpace space = iteration_space(both, op);
    return profile_key(both, op, space,
                       degrees_of(layout::parse_mesh("a=2"), space, Split{samples == 2 ? -1 : both.find_dim("n")}));
  };
  EXPECT_EQ(key("conv5_2", 2), key("conv5_3", 2));
  EXPECT_EQ(key("conv5_2", 1), key("conv5_3", 1));
  EXPECT_NE(key("conv5_2", 2), key("conv5_2", 1));
  EXPECT_NE(key("conv5_2", 2), key("conv4_2", 2));
}

TEST(Pricing, TakesWhatWasMeasuredAndTheRooflineElsewhere) {
  const Graph both = with_backward(chain(4, 8));
  const layout::Mesh mesh = layout::parse_mesh("a=2");
  const Strategy strategy = data_parallel(both, mesh);
  OperatorProfile profile;
  add_times(both, strategy, 1e-3, profile);
  const Pricing measured(free_links(), mesh, cost::Arithmetic::kFp32, &profile), rates(free_links(), mesh);
  const Lowering lowering = lower(both, strategy);
  EXPECT_NEAR(price(both, lowering, measured).compute_seconds, 1e-3 * static_cast<double>(both.ops.size()), 1e-12);
  EXPECT_LT(price(both, lowering, rates).compute_seconds, 1e-6);
  // The tables of searches price the same.
  const GraphProblem problem = make_problem(both, measured);
  for (int i = 0; i < 4; ++i) {
    Assignment assignment(problem.nodes.size(), i % 2);
    const double seconds = price(both, lower(both, problem.strategy_of(both, assignment)), measured).seconds;
    EXPECT_NEAR(cost_of(problem.problem, assignment), seconds, 1e-9);
  }
}

TEST(Predict, IsTheSumOfWhatWasMeasured) {
  const Graph both =
      with_backward(gpt("gpt", {.batch = 4, .seq_len = 8, .layers = 1, .hidden = 16, .heads = 4, .vocab = 32}));
  const layout::Mesh mesh = layout::parse_mesh("a=2 b=2");
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const Strategy strategy = random_strategy(both, mesh, seed);
    OperatorProfile profile;
    add_times(both, strategy, 1e-3, profile);
    const Pricing pricing(free_links(), mesh, cost::Arithmetic::kFp32, &profile);
    const Prediction step = predict(both, strategy, pricing);
    std::size_t conversions = 0;
    for (const Inserted& inserted : lower(both, strategy).inserted)
      conversions += inserted.tensor >= 0 && inserted.step.kind != StepKind::kHalo ? 1 : 0;
    EXPECT_EQ(step.priced, 0U);
    EXPECT_EQ(step.measured, both.ops.size() + conversions);
    EXPECT_NEAR(step.compute_seconds, 1e-3 * static_cast<double>(both.ops.size()), 1e-9);
    EXPECT_NEAR(step.communication_seconds, 2e-3 * static_cast<double>(conversions), 1e-6);
    EXPECT_NEAR(step.seconds, step.compute_seconds + step.communication_seconds + step.update_seconds, 1e-12);
  }
}

/// (m + k - 1)(f + b) for k equal stages and m micro-batches: GPipe's, and that of 1F1B.
TEST(Predict, OfStagesIsGPipesFormula) {
  const int stages = 4, micros = 8;
  const Graph forward = chain(2 * stages - 1, 16);  // the loss is the last stage's second operator
  StagedPlan plan{.micros = micros, .schedule = "gpipe", .stages = {}};
  for (int s = 0; s < stages; ++s)
    plan.stages.push_back({.ops = {2 * s, 2 * s + 1}, .strategy = replicated(forward, layout::Mesh())});
  ASSERT_THAT(find_problems(forward, plan), IsEmpty());
  const Graph both = micro_graph(with_backward(forward), micros).graph;
  OperatorProfile profile;
  for (std::size_t i = 0; i < both.ops.size(); ++i)
    profile.seconds[profile_key(both, both.ops[i], iteration_space(both, both.ops[i]), {})] = 1e-3;
  const Pricing pricing(free_links(), layout::Mesh(), cost::Arithmetic::kFp32, &profile);
  // A stage of two layers: 2 ms forward, 4 ms backward. The first has no gradient of its input, the last a loss.
  const double full = (micros + stages - 1) * (2e-3 + 4e-3);
  for (const char* schedule : {"gpipe", "1f1b"}) {
    plan.schedule = schedule;
    const Prediction step = predict(forward, plan, pricing);
    EXPECT_LE(step.seconds, full * (1 + 1e-6)) << schedule;
    EXPECT_GE(step.seconds, full * 0.9) << schedule;
    EXPECT_EQ(step.priced, 0U);
    EXPECT_NEAR(step.compute_seconds, micros * 6e-3, 1e-9) << schedule;
    EXPECT_GT(step.waiting_seconds, 0) << schedule;
  }
}

TEST(TorchGPipe, BalancesStagesAndItsPlanCanRun) {
  const Graph forward = unet(4, 1, {.batch = 16, .size = 64, .classes = 2}), both = with_backward(forward);
  cost::Hardware hardware = free_links();
  hardware.device.fp32_tflops = 1;
  hardware.device.memory_gb_per_s = 100;
  const Found found = *search("torchgpipe", both, Pricing(hardware, factored_mesh(4)), {});
  ASSERT_TRUE(found.plan);
  EXPECT_EQ(found.plan->stages.size(), 4U);
  EXPECT_EQ(found.plan->schedule, "gpipe");
  EXPECT_GT(found.plan->micros, 1);
  EXPECT_THAT(find_problems(forward, *found.plan), IsEmpty());
  for (const StagePlan& stage : found.plan->stages) EXPECT_EQ(stage.strategy.checkpoints.size(), 1U);
  // The slowest stage has far less than half of the work; an even share is a quarter.
  const Pricing device(hardware, factored_mesh(1));
  std::vector<double> of_op = seconds_by_op(both, device, replicated(forward, factored_mesh(1)));
  const auto slowest = [&](const StagedPlan& plan) {
    double worst = 0;
    for (const StagePlan& stage : plan.stages) {
      double seconds = 0;
      for (const int op : stage.ops) seconds += of_op[static_cast<std::size_t>(op)];
      worst = std::max(worst, seconds);
    }
    return worst;
  };
  double total = 0;
  for (const double seconds : of_op) total += seconds;
  EXPECT_LT(slowest(*found.plan), 0.5 * total);
}

}  // namespace
}  // namespace trireme::plan::graph
