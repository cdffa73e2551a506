// Steps of training: momentum, weight decay and rates, batch norms of a rank's own samples and of micro-batches,
// images.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/max.h>
#include <ATen/ops/var_mean.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "nets.h"
#include "outcome.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/plan/graph/annotate.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/random_strategy.h"
#include "trireme/spmd/commands.h"
#include "trireme/spmd/descent.h"
#include "trireme/spmd/pipeline.h"

namespace trireme::spmd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(LearningRate, GrowsLinearlyAndFallsToATenthAtEachStep) {
  const DescentOptions options{.learning_rate = 0.8, .warmup_steps = 4, .warmup_from = 0.2, .decay_at = {10, 20}};
  std::vector<double> rates;
  for (const std::int64_t step : {0, 2, 4, 9, 10, 25}) rates.push_back(learning_rate_at(options, step));
  using ::testing::DoubleNear;
  EXPECT_THAT(rates, ElementsAre(DoubleNear(0.2, 1e-12), DoubleNear(0.5, 1e-12), DoubleNear(0.8, 1e-12),
                                 DoubleNear(0.8, 1e-12), DoubleNear(0.08, 1e-12), DoubleNear(0.008, 1e-12)));
}

TEST(Descent, WithMomentumAndWeightDecayIsTheSameOnRanksAndWhole) {
  const pg::Graph both = with_backward(with_dtype(residual_block(), pg::DType::kFp64));
  const DescentOptions options{.learning_rate = 0.2, .momentum = 0.9, .weight_decay = 0.01, .warmup_steps = 2};
  // By hand, on the whole: norms are not decayed.
  Values values = start_values(both, 1), velocities(values.size());
  std::vector<double> expected, losses(4);
  for (int step = 0; step < 4; ++step) {
    const Reference reference = run_reference(both, values, 5, step);
    expected.push_back(reference.loss);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!reference.gradients[i].defined()) continue;
      const bool is_norm = both.tensors[i].name.find(".bn.") != std::string::npos;
      at::Tensor by = reference.gradients[i] + (is_norm ? 0 : 0.01) * values[i];
      velocities[i] = velocities[i].defined() ? velocities[i] * 0.9 + by : by;
      values[i] = values[i] - (step < 2 ? 0.1 * step : 0.2) * velocities[i];
    }
  }
  const Values start = start_values(both, 1);
  const pg::Strategy strategy = random_strategy(both, layout::parse_mesh("a=2 b=2"), 4);
  comm::run_ranks(4, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    Executor executor(both, strategy, rank.world(), {.seed = 5, .descent = options});
    executor.load(start);
    for (double& loss : losses) {
      const double value = executor.step(start).loss;
      if (rank.rank() == 0) loss = value;
    }
  });
  for (std::size_t step = 0; step < 4; ++step) EXPECT_NEAR(losses[step], expected[step], 1e-9) << step;
  EXPECT_NE(losses[3], losses[0]);
}

TEST(LocalBatchNorm, OnTwoRanksIsTwoMicroBatchesAndSendsNoStatistics) {
  const pg::Graph exact = with_dtype(residual_block(), pg::DType::kFp64), local = with_local_norms(exact);
  const pg::Graph both = with_backward(local);
  const pg::Strategy strategy = mesh_tensorflow(local, layout::parse_mesh("a=2"), pg::parse_mesh_layout("n:a"));
  const Values start = start_values(both, 1);
  const Outcome outcome = run_once(both, strategy, start, run_micro_reference(both, start, 5, 0, 2));
  EXPECT_NEAR(outcome.loss, outcome.expected, 1e-9);
  EXPECT_LT(outcome.worst, 1e-9) << outcome.parameter;
  EXPECT_THAT(outcome.deviations, IsEmpty());
  const auto statistics = [&](const pg::Graph& graph) {
    return std::ranges::count_if(lower(with_backward(graph), strategy).inserted,
                                 [](const pg::Inserted& one) { return one.tensor < 0; });
  };
  EXPECT_EQ(statistics(local), 0);
  EXPECT_EQ(statistics(exact), 8);  // four norms, forward and backward
  // The exact ones are of the whole batch: something else.
  const double whole = run_reference(both, start, 5, 0).loss;
  EXPECT_GT(std::abs(whole - outcome.loss), 1e-6);
}

TEST(DeferredBatchNorm, HasTheStatisticsOfTheMiniBatchWhateverTheMicroBatches) {
  const pg::Graph forward = with_dtype(residual_block(), pg::DType::kFp64);
  const pg::Graph both = with_backward(forward);
  const Values start = start_values(both, 1);
  const auto value = [&](const char* name) { return start[static_cast<std::size_t>(both.find_tensor(name))]; };
  // The first batch norm reads the same whatever the micro-batches: its moments over the whole batch are known.
  const at::Tensor made =
      at::convolution(value("image"), value("conv1.weight"), c10::nullopt, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1);
  const auto [variance, mean] = at::var_mean(made, {0, 2, 3}, /*unbiased=*/true);
  const at::Tensor wanted[] = {mean * 0.1, variance * 0.1 + 0.9};  // one step from zero and one, with a momentum of 0.1
  pg::StagedPlan plan{.micros = 2, .schedule = "gpipe", .stages = {}};
  for (int stage = 0; stage < 2; ++stage)
    plan.stages.push_back({.ops = {}, .strategy = replicated(both, layout::parse_mesh(stage == 0 ? "a=2" : "a=1"))});
  for (std::size_t i = 0; i < forward.ops.size(); ++i)
    plan.stages[i < forward.ops.size() / 2 ? 0 : 1].ops.push_back(static_cast<int>(i));
  plan.stages[0].strategy.splits[0][0] = both.find_dim("n");  // conv1 and its norm by samples
  plan.stages[0].strategy.splits[1][0] = both.find_dim("n");
  comm::run_ranks(3, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    PipelineExecutor pipeline(forward, plan, rank.world(), {.seed = 5});
    pipeline.load(start);
    pipeline.step(start);
    if (rank.rank() == 2) return;
    const at::Tensor moments = pipeline.executor().statistics().at("conv1.bn").moments;
    for (int i = 0; i < 2; ++i) EXPECT_LT(at::max(at::abs(moments[i] - wanted[i])).item<double>(), 1e-12) << i;
  });
}

TEST(ZeroGamma, MakesResidualBlocksBeginAsTheIdentity) {
  const pg::Graph forward = residual_block();
  const Values plain = start_values(forward, 1), zeroed = with_zero_gammas(forward, plain);
  const auto sum = [&](const Values& values, const char* name) {
    return at::max(at::abs(values[static_cast<std::size_t>(forward.find_tensor(name))])).item<double>();
  };
  EXPECT_GT(sum(plain, "conv3.bn.weight"), 0.5);
  EXPECT_EQ(sum(zeroed, "conv3.bn.weight"), 0);
  EXPECT_GT(sum(zeroed, "skip.bn.weight"), 0.5);  // the way around stays
  EXPECT_GT(sum(zeroed, "conv1.bn.weight"), 0.5);
}

/// Bright squares in one of four corners, with noise.
ImageSet corners(int count, std::uint64_t seed) {
  ImageSet images{.side = 8};
  const Random random(seed, "corners");
  for (int i = 0; i < count; ++i) {
    const auto corner = static_cast<int>(random.below(4, static_cast<std::uint64_t>(1000000 + i)));
    images.labels.push_back(corner);
    for (int pixel = 0; pixel < 64; ++pixel) {
      const bool lower = pixel / 8 >= 4, right = pixel % 8 >= 4;
      const bool bright = lower == (corner / 2 == 1) && right == (corner % 2 == 1);
      const auto draw = static_cast<double>(random.below(1000, static_cast<std::uint64_t>(64 * i + pixel))) / 1000;
      images.pixels.push_back(static_cast<float>(0.5 * draw + (bright ? 0.4 : 0)));
    }
  }
  return images;
}

/// A residual block whose mean keeps where things are: the image in quarters.
pg::Graph corner_net() {
  pg::Builder build("corners");
  const int n = build.dim("n", 8), classes = build.dim("classes", 4);
  int x = build.input("image", {n, build.dim("c", 1), build.dim("h8", 8), build.dim("w8", 8)});
  x = build.convolution("conv1", x,
                        {.channels = 4, .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .bias = false});
  x = build.elementwise("relu1", "relu", {build.batch_norm("bn1", x)});
  x = build.pooling("pool", x, {.function = "average", .kernel = {2, 2}, .stride = {2, 2}});
  const std::vector<int> dims = build.dims_of(x);
  x = build.reshape("flatten", x, {{{dims[1], dims[2], dims[3]}, {build.dim("flat", 16)}}});
  build.loss("loss", build.linear("fc", x, classes), build.indices("labels", {n}), classes);
  return build.finish();
}

TEST(Images, AreLearnedAlikeOnOneRankAndOnTwo) {
  RunRequest request{.forward = corner_net(),
                     .steps = 60,
                     .descent = {.learning_rate = 0.05, .momentum = 0.9},
                     .seed = 3,
                     .train = corners(160, 1),
                     .test = corners(40, 2)};
  std::vector<RunReport> reports;
  for (const char* mesh : {"", "a=2"}) {
    const layout::Mesh axes = layout::parse_mesh(mesh);
    request.strategies = {std::string_view(mesh).empty()
                              ? replicated(request.forward, axes)
                              : mesh_tensorflow(request.forward, axes, pg::parse_mesh_layout("n:a"))};
    comm::run_ranks(axes.ranks(), [&](comm::Rank& rank) {
      const std::vector<RunReport> made = trireme_spmd()->run(request, rank);
      if (rank.rank() == 0) reports.push_back(made[0]);
    });
  }
  EXPECT_GE(reports[0].accuracy, 0.95);
  EXPECT_GE(reports[1].accuracy, 0.95);
  EXPECT_LT(reports[0].losses.back(), 0.3 * reports[0].losses.front());
  EXPECT_NEAR(reports[0].losses[5], reports[1].losses[5], 1e-3);
}

}  // namespace
}  // namespace trireme::spmd
