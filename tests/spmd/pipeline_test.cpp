// Graphs in pipeline stages, each stage split by a random strategy, equal the whole graph under autograd, and send what
// was listed; so do the plans that searches find.
#include "trireme/spmd/pipeline.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/max.h>
#include <ATen/ops/var_mean.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "nets.h"
#include "staged_outcome.h"
#include "tests/plan/graph/p100_nodes.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/comm/rank.h"
#include "trireme/plan/graph/annotate.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/predict.h"
#include "trireme/plan/graph/random_strategy.h"
#include "trireme/plan/graph/search/search.h"
#include "trireme/spmd/verify.h"

namespace trireme::spmd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Stages of consecutive operators on the given meshes, each with a random strategy, some of their parameters sharded
/// and some of their operators recomputed.
pg::StagedPlan random_plan(const pg::Graph& forward, const std::vector<std::string>& meshes, int micros,
                           std::uint64_t seed) {
  const Random random(seed, "staged plan");
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t most) { return static_cast<std::size_t>(random.below(most, draw++)); };
  const pg::Graph both = micro_graph(with_backward(forward), micros).graph;
  std::set<std::size_t> cuts;
  while (cuts.size() + 1 < meshes.size()) cuts.insert(1 + below(forward.ops.size() - 1));
  const char* schedules[] = {"gpipe", "1f1b", "zb-h1", "zb-h2"};
  pg::StagedPlan plan{.micros = micros, .schedule = schedules[below(4)], .stages = {}};
  for (const std::string& mesh : meshes)
    plan.stages.push_back({.ops = {}, .strategy = random_strategy(both, layout::parse_mesh(mesh), seed)});
  std::size_t stage = 0;
  for (std::size_t i = 0; i < forward.ops.size(); ++i) {
    if (cuts.contains(i)) ++stage;
    plan.stages[stage].ops.push_back(static_cast<int>(i));
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      if (s != stage) std::ranges::fill(plan.stages[s].strategy.splits[i], -1);
    }
  }
  for (pg::StagePlan& of : plan.stages) {
    for (std::size_t i = 0; i < of.ops.size();) {
      const std::size_t end = std::min(of.ops.size(), i + 1 + below(6));
      if (below(2) == 0)
        of.strategy.checkpoints.emplace_back(of.ops.begin() + static_cast<std::ptrdiff_t>(i),
                                             of.ops.begin() + static_cast<std::ptrdiff_t>(end));
      i = end;
    }
  }
  const pg::StagedGraph staged = stage_graphs(both, plan);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const pg::Graph& graph = staged.stages[s].graph;
    const pg::Uses uses = uses_of(graph);
    for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].role != pg::Role::kParameter || uses.consumers[i].empty() || below(2) == 0) continue;
      plan.stages[s].strategy.stored[static_cast<int>(i)] =
          fully_sharded(graph, staged.stages[s].strategy, static_cast<int>(i));
    }
  }
  return plan;
}

struct StagedCase {
  std::string name;
  pg::Graph forward;
  std::vector<std::string> meshes;
  int micros = 2, plans = 1;
  bool whole_batch = true;  // without batch norm, micro-batches are the batch
};

TEST(PipelineExecutor, RandomStagesEqualTheWholeGraphAndSendWhatWasListed) {
  const pg::TransformerShape tiny{
      .batch = 4, .seq_len = 4, .layers = 2, .hidden = 8, .heads = 4, .vocab = 12, .positions = 4};
  const StagedCase all[] = {
      {"windows", window_net(4), {"a=2", "a=2"}, 2, 3, false},
      {"windows on meshes of different sizes", window_net(4), {"a=2", "", "b=2 c=2"}, 2, 1, false},
      {"mixed", mixed_net(), {"a=2", "a=2"}, 4, 2},
      {"alexnet", pg::alexnet({.batch = 4, .size = 64, .classes = 4, .width = 16}), {"a=2", "a=2"}, 2, 1},
      {"lstm",
       pg::lstm_language_model({.batch = 4, .steps = 3, .layers = 2, .hidden = 8, .vocab = 12}),
       {"a=2", "", ""}},
      {"gnmt", pg::gnmt({.batch = 4, .steps = 2, .layers = 3, .hidden = 8, .vocab = 12}), {"", "a=2", ""}, 2, 1},
      {"gpt", pg::gpt("gpt", tiny), {"a=2", "a=2"}, 2},
      {"moe",
       pg::moe({.groups = 4, .tokens = 4, .hidden = 8, .heads = 2, .ffn = 8, .experts = 4, .layers = 2}),
       {"a=2", "a=2"},
       2},
  };
  for (const StagedCase& one : all) {
    const pg::Graph forward = with_dtype(one.forward, pg::DType::kFp64);
    const Values start = start_values(forward, 1);
    const Reference reference = run_micro_reference(forward, start, 5, 0, one.micros);
    if (one.whole_batch) {
      const Reference whole = run_reference(forward, start, 5, 0);
      EXPECT_NEAR(whole.loss, reference.loss, 1e-12) << one.name;
    }
    std::size_t parameters = 0;
    for (const at::Tensor& gradient : reference.gradients) parameters += gradient.defined() ? 1 : 0;
    for (int i = 0; i < one.plans; ++i) {
      const pg::StagedPlan plan = random_plan(forward, one.meshes, one.micros, static_cast<std::uint64_t>(i));
      const std::string text = fmt::format("{}, plan {}\n{}", one.name, i, to_text(forward, plan));
      ASSERT_THAT(find_problems(forward, plan), IsEmpty()) << text;
      ASSERT_EQ(parse_staged(forward, to_text(forward, plan), "plan"), plan) << text;
      const StagedOutcome outcome = run_staged_once(forward, plan, start, reference);
      ASSERT_NEAR(outcome.loss, reference.loss, 1e-9) << text;
      ASSERT_LT(outcome.worst, 1e-9) << outcome.parameter << " of " << text;
      ASSERT_GE(outcome.compared, parameters) << text;
      ASSERT_THAT(outcome.deviations, IsEmpty()) << text;
    }
  }
}

/// A cluster with links so slow and memory so small that stages pay.
cost::Hardware slow_links() {
  cost::Hardware hardware = pg::p100_nodes();
  hardware.cluster.link = {.kind = "pcie", .gb_per_s = 2};
  hardware.cluster.network = {.kind = "ethernet", .gb_per_s = 1};
  return hardware;
}

TEST(PipelineExecutor, StagesThatSearchesFindForPublishedModelsRunOnTheirSmallSiblings) {
  const pg::Pricing pricing(slow_links(), pg::factored_mesh(4));
  std::size_t most_stages = 0;
  for (const std::string name : {"vgg16", "gpt"}) {
    const pg::Graph published = pg::build_model(name, 8), both = with_backward(published);
    const pg::Graph small = with_dtype(pg::small_model(name, 4), pg::DType::kFp64);
    const Values start = start_values(small, 1);
    for (const std::string method : {"alpa", "rannc", "galvatron", "pipedream"}) {
      const pg::Found found = *pg::search(method, both, pricing, {.memory_bytes = 16e9});
      ASSERT_TRUE(found.plan.has_value()) << name << " by " << method << ": " << found.note;
      EXPECT_THAT(find_problems(published, *found.plan), IsEmpty()) << name << " by " << method;
      EXPECT_EQ(found.plan->ranks(), 4) << name << " by " << method;
      const pg::StagedPlan plan = transferred(published, *found.plan, small);
      ASSERT_THAT(find_problems(small, plan), IsEmpty()) << name << " by " << method;
      most_stages = std::max(most_stages, plan.stages.size());
      const Reference reference = run_micro_reference(small, start, 5, 0, plan.micros);
      const StagedOutcome outcome = run_staged_once(small, plan, start, reference);
      EXPECT_LT(outcome.worst, 1e-9) << name << " by " << method << ": " << outcome.parameter;
      EXPECT_NEAR(outcome.loss, reference.loss, 1e-9) << name << " by " << method;
      EXPECT_THAT(outcome.deviations, IsEmpty()) << name << " by " << method;
    }
  }
  EXPECT_GT(most_stages, 1U);
}

/// Lingvo hands the seeds of random operators through micro-batches; here an element's draw follows from its place in
/// the batch, so neither micro-batches nor stages nor splits change it.
TEST(PipelineExecutor, DropoutIsTheSameInAnyNumberOfMicroBatches) {
  pg::Builder build("drops");
  const int n = build.dim("n", 8), classes = build.dim("classes", 4);
  int x = build.input("x", {n, build.dim("in", 8)});
  for (int i = 0; i < 4; ++i) {
    x = build.linear(fmt::format("fc{}", i), x, build.dim(fmt::format("f{}", i), 8));
    x = build.elementwise(fmt::format("drop{}", i), "dropout", {x});
  }
  x = build.linear("head", x, classes);
  build.loss("loss", x, build.indices("labels", {n}), classes);
  const pg::Graph forward = with_dtype(build.finish(), pg::DType::kFp64);
  const Values start = start_values(forward, 1);
  const Reference whole = run_reference(forward, start, 5, 0);
  for (const int micros : {1, 2, 4}) {
    for (const std::string mesh : {"", "a=2"}) {
      pg::StagedPlan plan = random_plan(forward, {mesh, mesh}, micros, 3);
      for (pg::StagePlan& stage : plan.stages) {
        for (std::size_t i = 0; i < stage.strategy.splits.size(); ++i) std::ranges::fill(stage.strategy.splits[i], n);
        stage.strategy.stored.clear();
      }
      const StagedOutcome outcome = run_staged_once(forward, plan, start, whole);
      EXPECT_NEAR(outcome.loss, whole.loss, 1e-12) << micros << " micro-batches";
      EXPECT_LT(outcome.worst, 1e-12) << micros << " micro-batches: " << outcome.parameter;
    }
  }
}

/// GShard's annotations on two layers of experts, and GPipe's stages over them.
TEST(PipelineExecutor, AnnotatedExpertsRunInStages) {
  const pg::Graph forward =
      with_dtype(pg::moe({.groups = 8, .tokens = 4, .hidden = 8, .heads = 2, .ffn = 8, .experts = 4, .layers = 2}),
                 pg::DType::kFp64);
  const layout::Mesh mesh = layout::parse_mesh("a=2");
  const pg::Strategy annotated =
      propagate(forward, mesh,
                pg::parse_annotations("hidden groups:a; layer0.experts.up experts:a; layer0.experts.down experts:a; "
                                      "layer1.experts.up experts:a; layer1.experts.down experts:a"));
  pg::StagedPlan plan{.micros = 4, .schedule = "gpipe", .stages = {{{}, annotated}, {{}, annotated}}};
  const int cut = forward.find_op("layer1.norm1");
  for (int i = 0; i < static_cast<int>(forward.ops.size()); ++i) plan.stages[i < cut ? 0 : 1].ops.push_back(i);
  ASSERT_THAT(find_problems(forward, plan), IsEmpty());
  EXPECT_THAT(describe(forward, plan), HasSubstr("all-to-all"));
  const Values start = start_values(forward, 1);
  const Reference whole = run_reference(forward, start, 5, 0);
  const StagedOutcome outcome = run_staged_once(forward, plan, start, whole);
  EXPECT_NEAR(outcome.loss, whole.loss, 1e-12);
  EXPECT_LT(outcome.worst, 1e-9) << outcome.parameter;
  EXPECT_THAT(outcome.deviations, IsEmpty());
}

/// Zero-bubble schedules: gradients of weights stand behind those of inputs, with any split, recomputation and shards.
TEST(PipelineExecutor, GradientsOfWeightsMayComeLater) {
  const pg::TransformerShape tiny{
      .batch = 8, .seq_len = 4, .layers = 2, .hidden = 8, .heads = 4, .vocab = 12, .positions = 4};
  const std::pair<const char*, pg::Graph> nets[] = {
      {"gpt", pg::gpt("gpt", tiny)},
      {"windows", window_net(8)},
      {"lstm", pg::lstm_language_model({.batch = 8, .steps = 3, .layers = 2, .hidden = 8, .vocab = 12})}};
  for (const auto& [name, net] : nets) {
    const pg::Graph forward = with_dtype(net, pg::DType::kFp64);
    const Values start = start_values(forward, 1);
    const Reference reference = run_micro_reference(forward, start, 5, 0, 4);
    for (const char* schedule : {"1f1b", "zb-h1", "zb-h2"}) {
      pg::StagedPlan plan = random_plan(forward, {"a=2", "", ""}, 4, 7);
      plan.schedule = schedule;
      ASSERT_THAT(find_problems(forward, plan), IsEmpty()) << name << " " << schedule;
      const pg::Graph both = micro_graph(with_backward(forward), plan.micros).graph;
      bool is_behind = true;
      for (const pg::Stage& stage : stage_graphs(both, plan).stages) {
        bool seen = false;
        for (const pg::Op& op : stage.graph.ops) {
          const bool makes = pg::makes_weight_gradients(stage.graph, op);
          is_behind = is_behind && (makes || !seen);
          seen = seen || makes;
        }
      }
      EXPECT_EQ(is_behind, std::string_view(schedule) != "1f1b") << name << " " << schedule;
      const StagedOutcome outcome = run_staged_once(forward, plan, start, reference);
      EXPECT_NEAR(outcome.loss, reference.loss, 1e-9) << name << " " << schedule;
      EXPECT_LT(outcome.worst, 1e-9) << name << " " << schedule << ": " << outcome.parameter;
      EXPECT_THAT(outcome.deviations, IsEmpty()) << name << " " << schedule;
    }
  }
}

/// They fill what 1F1B waits, so a step is predicted to be shorter, with the same work.
TEST(PipelineExecutor, ZeroBubbleSchedulesArePredictedToBeShorter) {
  const pg::Graph forward = pg::build_model("gpt", 8);
  pg::StagedPlan plan{.micros = 8, .schedule = "1f1b", .stages = {}};
  for (int stage = 0; stage < 4; ++stage)
    plan.stages.push_back({.ops = {}, .strategy = replicated(forward, pg::factored_mesh(1))});
  const std::size_t ops = forward.ops.size();
  for (std::size_t i = 0; i < ops; ++i) plan.stages[i * 4 / ops].ops.push_back(static_cast<int>(i));
  const pg::Pricing pricing(pg::p100_nodes(), pg::factored_mesh(1));
  const pg::Prediction plain = predict(forward, plan, pricing);
  plan.schedule = "zb-h1";
  const pg::Prediction zero = predict(forward, plan, pricing);
  EXPECT_NEAR(zero.compute_seconds, plain.compute_seconds, 1e-9 * plain.compute_seconds);
  EXPECT_LT(zero.seconds, 0.97 * plain.seconds);
  EXPECT_GE(zero.seconds, zero.compute_seconds);
}

TEST(PipelineExecutor, CheckpointsHoldLessThanSavedActivations) {
  pg::Builder build("chain");
  const int n = build.dim("n", 4), classes = build.dim("classes", 4);
  int x = build.input("image", {n, build.dim("rgb", 4), build.dim("h16", 16), build.dim("w16", 16)});
  for (int i = 0; i < 12; ++i) {
    x = build.convolution(fmt::format("conv{}", i), x, {.channels = 4, .kernel = {3, 3}, .padding = {1, 1}});
    x = build.elementwise(fmt::format("tanh{}", i), "tanh", {x});
  }
  x = build.linear("fc", build.global_average("mean", x), classes);
  build.loss("loss", x, build.indices("labels", {n}), classes);
  const pg::Graph forward = with_dtype(build.finish(), pg::DType::kFp64);
  const Values start = start_values(forward, 1);
  const Reference reference = run_reference(forward, start, 5, 0);
  pg::StagedPlan plan{.micros = 1, .stages = {{{}, replicated(forward, layout::Mesh())}}};
  for (int i = 0; i < static_cast<int>(forward.ops.size()); ++i) plan.stages[0].ops.push_back(i);
  const StagedOutcome saved = run_staged_once(forward, plan, start, reference);
  for (int i = 0; i < 24; i += 6) plan.stages[0].strategy.checkpoints.push_back({i, i + 1, i + 2, i + 3, i + 4, i + 5});
  const StagedOutcome recomputed = run_staged_once(forward, plan, start, reference);
  EXPECT_LT(saved.worst, 1e-9);
  EXPECT_LT(recomputed.worst, 1e-9);
  EXPECT_LT(recomputed.peak_bytes, 0.7 * saved.peak_bytes);
}

/// U-Net in four stages under GPipe's schedule, each stage recomputed: down to the first pooling, the rest of the way
/// down, most of the way up, the last level.
pg::StagedPlan unet_stages(const pg::Graph& forward, int micros) {
  pg::StagedPlan plan{.micros = micros, .schedule = "gpipe", .stages = {}};
  int begin = 0;
  for (const char* next : {"down2.conv1", "up4", "up1", ""}) {
    const int end = *next ? forward.find_op(next) : static_cast<int>(forward.ops.size());
    pg::StagePlan& stage = plan.stages.emplace_back(pg::StagePlan{{}, replicated(forward, layout::Mesh())});
    for (; begin < end; ++begin) stage.ops.push_back(begin);
    stage.strategy.checkpoints = {stage.ops};
  }
  return plan;
}

/// torchgpipe's portals: what a later stage joins goes straight to it, and its gradient straight back.
TEST(PipelineExecutor, SkipConnectionsOfAUNetPassNoStageInBetween) {
  const pg::Graph forward =
      with_dtype(pg::unet(4, 1, {.batch = 8, .size = 32, .classes = 2}, /*batch_norm=*/true), pg::DType::kFp64);
  const pg::StagedPlan plan = unet_stages(forward, 4);
  ASSERT_THAT(find_problems(forward, plan), IsEmpty());
  const pg::Graph both = micro_graph(with_backward(forward), plan.micros).graph;
  const pg::StagedGraph staged = stage_graphs(both, plan);
  std::vector<std::string> ways;
  for (const pg::Delivery& one : staged.deliveries)
    ways.push_back(fmt::format("{} {}-{}", both.tensor(one.tensor).name, one.from_stage, one.to_stage));
  EXPECT_THAT(ways, ::testing::UnorderedElementsAre(
                        "down1.relu2.out 0-3", "pool1.out 0-1", "down2.relu2.out 1-2", "down3.relu2.out 1-2",
                        "down4.relu2.out 1-2", "bottom.relu2.out 1-2", "up2.relu2.out 2-3", "up2.relu2.out.grad 3-2",
                        "bottom.relu2.out.grad 2-1", "down4.relu2.out.grad.0 2-1", "down3.relu2.out.grad.0 2-1",
                        "down2.relu2.out.grad.0 2-1", "pool1.out.grad 1-0", "down1.relu2.out.grad.0 3-0"));
  const Values start = start_values(forward, 1);
  const Reference reference = run_micro_reference(forward, start, 5, 0, plan.micros);
  const StagedOutcome outcome = run_staged_once(forward, plan, start, reference);
  EXPECT_NEAR(outcome.loss, reference.loss, 1e-12);
  EXPECT_LT(outcome.worst, 1e-9) << outcome.parameter;
  EXPECT_THAT(outcome.deviations, IsEmpty()) << "each rank sent what is listed, to the byte, and nothing for others";
}

/// torchgpipe's deferred batch norm: every batch norm is updated once a step, with the moments of the mini-batch over
/// all of its micro-batches, and what is recomputed does not count twice. So neither stages nor recomputation change
/// them.
TEST(PipelineExecutor, DeferredBatchNormOfAUNetIsThatOfTheSerialRun) {
  const pg::Graph forward =
      with_dtype(pg::unet(4, 1, {.batch = 8, .size = 32, .classes = 2}, /*batch_norm=*/true), pg::DType::kFp64);
  const Values start = start_values(forward, 1);
  constexpr int kSteps = 2;
  const auto statistics_of = [&](const pg::StagedPlan& plan) {
    RunningStatistics all;
    std::mutex mutex;
    comm::run_ranks(plan.ranks(), [&](comm::Rank& rank) {
      at::set_num_threads(1);
      PipelineExecutor pipeline(forward, plan, rank.world(), {.seed = 5});
      pipeline.load(start);
      for (int step = 0; step < kSteps; ++step) pipeline.step(start);
      const std::scoped_lock lock(mutex);
      for (const auto& [name, of] : pipeline.executor().statistics()) EXPECT_TRUE(all.emplace(name, of).second) << name;
    });
    return all;
  };
  pg::StagedPlan serial{.micros = 4, .schedule = "gpipe", .stages = {{{}, replicated(forward, layout::Mesh())}}};
  for (int i = 0; i < static_cast<int>(forward.ops.size()); ++i) serial.stages[0].ops.push_back(i);
  const RunningStatistics expected = statistics_of(serial), staged = statistics_of(unet_stages(forward, 4));
  ASSERT_EQ(expected.size(), 18U);  // two in each of nine levels
  ASSERT_EQ(staged.size(), expected.size());
  for (const auto& [name, of] : expected)
    EXPECT_LT(at::max(at::abs(staged.at(name).moments - of.moments)).item<double>(), 1e-12) << name;
  // By hand for the first one, whose inputs no batch norm has touched: moments of the whole mini-batch, two steps from
  // zero and one with a momentum of 0.1.
  const auto value = [&](const char* name) { return start[static_cast<std::size_t>(forward.find_tensor(name))]; };
  const at::Tensor made = at::convolution(value("image"), value("down1.conv1.weight"), c10::nullopt, {1, 1}, {1, 1},
                                          {1, 1}, false, {0, 0}, 1);
  const auto [variance, mean] = at::var_mean(made, {0, 2, 3}, /*unbiased=*/true);
  const at::Tensor moments = expected.at("down1.bn1").moments;
  EXPECT_LT(at::max(at::abs(moments[0] - mean * 0.19)).item<double>(), 1e-12);
  EXPECT_LT(at::max(at::abs(moments[1] - (variance * 0.19 + 0.81))).item<double>(), 1e-12);
}

TEST(StagedPlan, SaysByNameWhatCannotRun) {
  const pg::Graph forward = mixed_net();
  pg::StagedPlan plan = random_plan(forward, {"a=2", "a=2"}, 2, 1);
  const auto first_problem = [&](const pg::StagedPlan& of) {
    const auto problems = find_problems(forward, of);
    return problems.empty() ? std::string() : problems.front();
  };
  EXPECT_EQ(first_problem(plan), "");
  pg::StagedPlan other = plan;
  other.micros = 3;
  EXPECT_THAT(first_problem(other), HasSubstr("4 samples do not divide into 3 micro-batches"));
  other = plan;
  std::swap(other.stages[0].ops, other.stages[1].ops);
  other.stages[0].strategy.checkpoints.clear();
  other.stages[1].strategy.checkpoints.clear();
  EXPECT_THAT(first_problem(other), HasSubstr("is in stage 0 and reads"));
  other = plan;
  other.schedule = "pipedream";
  EXPECT_THAT(first_problem(other), HasSubstr("updates while micro-batches are in flight"));
  for (const char* chunked : {"interleaved", "zb-v", "dualpipe"}) {
    other.schedule = chunked;
    EXPECT_THAT(first_problem(other), HasSubstr("graphs run with one chunk a rank")) << chunked;
  }
  other = plan;
  other.stages[1].ops.pop_back();
  other.stages[1].strategy.checkpoints.clear();
  EXPECT_THAT(first_problem(other), HasSubstr("operator loss stands in no stage"));
  const auto error_of = [&](const std::string& text) -> std::string {
    try {
      pg::parse_staged(forward, text, "p.plan");
    } catch (const ConfigError& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(error_of("pipeline mixed\nmicros 0\n"), HasSubstr("p.plan, line 2: micros is no positive number"));
  EXPECT_THAT(error_of("pipeline mixed\nnorm\n"), HasSubstr("stands before the first stage"));
  EXPECT_THAT(error_of("pipeline mixed\nstage\nmesh a=2\nnormm\n"), HasSubstr("did you mean \"norm\""));
  EXPECT_THAT(error_of("pipeline mixed\nstage\nmesh a=2\nstore x n:a\n"), HasSubstr("names no parameter"));
}

}  // namespace
}  // namespace trireme::spmd
