// Random legal strategies of many small graphs equal the whole graph under autograd, and exchange what was listed.
#include "trireme/spmd/executor.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nets.h"
#include "outcome.h"
#include "tests/plan/graph/p100_nodes.h"
#include "trireme/base/error.h"
#include "trireme/comm/rank.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/random_strategy.h"
#include "trireme/plan/graph/search/search.h"
#include "trireme/spmd/verify.h"

namespace trireme::spmd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Case {
  std::string name;
  pg::Graph forward;
  std::string mesh = "a=2 b=2";
  int strategies = 4;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"windows", window_net(), "a=2 b=2", 16});
  all.push_back({"windows on eight", window_net(), "a=2 b=2 c=2", 2});
  all.push_back({"mixed", mixed_net(), "a=2 b=2", 16});
  all.push_back({"mixed on one axis", mixed_net(), "a=4", 4});
  all.push_back({"resnet", pg::resnet(50, 1, {.batch = 2, .size = 32, .classes = 4, .width = 32}), "a=2 b=2", 1});
  all.push_back({"gnmt", pg::gnmt({.batch = 4, .steps = 2, .layers = 3, .hidden = 8, .vocab = 12}), "a=2 b=2", 2});
  all.push_back({"onnx", pg::open_graph(TRIREME_FIXTURES "/onnx/small.onnx"), "a=2 b=2", 8});
  all.push_back({"onnx tokens", pg::open_graph(TRIREME_FIXTURES "/onnx/tokens.onnx"), "a=2 b=2", 4});
  return all;
}

TEST(Executor, RandomStrategiesEqualTheWholeGraphAndExchangeWhatWasListed) {
  bool any_halo = false;
  for (const Case& one : cases()) {
    const pg::Graph both = with_backward(with_dtype(one.forward, pg::DType::kFp64));
    const Values start = start_values(both, 1);
    const Reference reference = run_reference(both, start, 5, 0);
    const layout::Mesh mesh = layout::parse_mesh(one.mesh);
    for (int i = 0; i < one.strategies; ++i) {
      const pg::Strategy strategy = random_strategy(both, mesh, static_cast<std::uint64_t>(i));
      ASSERT_THAT(find_problems(both, strategy), IsEmpty()) << one.name;
      const Outcome outcome = run_once(both, strategy, start, reference);
      const std::string text = fmt::format("{}, strategy {}\n{}", one.name, i, to_text(one.forward, strategy));
      ASSERT_NEAR(outcome.loss, outcome.expected, 1e-9) << text;
      ASSERT_LT(outcome.worst, 1e-9) << outcome.parameter << " of " << text;
      ASSERT_GT(outcome.compared, 3U) << text;
      ASSERT_THAT(outcome.deviations, IsEmpty()) << text;
      any_halo = any_halo || outcome.has_halo;
    }
  }
  EXPECT_TRUE(any_halo);
}

TEST(Executor, StrategiesThatSearchesFindForPublishedModelsRunOnTheirSmallSiblings) {
  bool any_halo = false;
  const pg::Pricing pricing(pg::p100_nodes(), pg::factored_mesh(4));
  struct Wanted {
    std::string name, method;
    pg::Index batch;  // so few samples that data parallelism is not all there is
  };
  for (const auto& [name, method, batch] :
       {Wanted{"alexnet", "optcnn", 8}, Wanted{"vgg16", "optcnn", 2}, Wanted{"lstm", "tofu", 8},
        Wanted{"gpt", "tofu", 2}, Wanted{"alexnet", "flexflow", 2}}) {
    const pg::Graph published = with_backward(pg::build_model(name, batch));
    const pg::Graph small = pg::small_model(name, batch);
    const pg::Graph both = with_backward(with_dtype(small, pg::DType::kFp64));
    const Values start = start_values(both, 1);
    const Reference reference = run_reference(both, start, 5, 0);
    const pg::Found found = *pg::search(method, published, pricing, {.memory_bytes = 16e9});
    const pg::Strategy strategy = transferred(published, found.strategy, small);
    EXPECT_FALSE(strategy == pg::data_parallel(both, strategy.mesh)) << name;
    const Outcome outcome = run_once(both, strategy, start, reference);
    EXPECT_LT(outcome.worst, 1e-9) << name << ": " << outcome.parameter;
    EXPECT_THAT(outcome.deviations, IsEmpty()) << name;
    any_halo = any_halo || outcome.has_halo;
  }
  EXPECT_TRUE(any_halo) << "with two samples on four devices images are split by height and width";
}

TEST(Executor, ReplicatedIsTheWholeGraphAndSendsNothing) {
  const pg::Graph both = with_backward(with_dtype(window_net(), pg::DType::kFp64));
  const Values start = start_values(both, 1);
  const pg::Strategy strategy = replicated(both, layout::parse_mesh("a=2"));
  const Outcome outcome = run_once(both, strategy, start, run_reference(both, start, 5, 0));
  EXPECT_LT(outcome.worst, 1e-10) << outcome.parameter;
  EXPECT_TRUE(lower(both, strategy).inserted.empty());
}

TEST(Executor, RefusesByNameWhatItCannotRun) {
  const pg::Graph both = with_backward(window_net());
  pg::Strategy strategy = replicated(both, layout::parse_mesh("a=3"));
  strategy.splits[0][0] = both.find_dim("h16");
  comm::run_ranks(3, [&](comm::Rank& rank) {
    try {
      const Executor executor(both, strategy, rank.world(), {});
      ADD_FAILURE();
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.message(), HasSubstr("operator conv1: 3 parts do not divide the 16 of h16"));
    }
    try {
      const Executor executor(with_backward(with_dtype(window_net(), pg::DType::kFp16)),
                              replicated(both, layout::parse_mesh("a=3")), rank.world(), {});
      ADD_FAILURE();
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.message(), HasSubstr("graphs run in bf16, fp32 and fp64"));
    }
    try {
      const Executor executor(both, replicated(both, layout::parse_mesh("a=2")), rank.world(), {});
      ADD_FAILURE();
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.message(), HasSubstr("for 2 ranks"));
    }
  });
}

TEST(Executor, StepsOfGradientDescentStayEqualAndFreeWhatIsReadNoMore) {
  const pg::Graph both = with_backward(with_dtype(
      pg::gpt("gpt", {.batch = 4, .seq_len = 8, .layers = 2, .hidden = 8, .heads = 4, .vocab = 12}), pg::DType::kFp64));
  const pg::Strategy strategy = random_strategy(both, layout::parse_mesh("a=2 b=2"), 3);
  Values start = start_values(both, 1);
  std::vector<double> expected, losses(3);
  double peak = 0;
  for (int step = 0; step < 3; ++step) {
    const Reference reference = run_reference(both, start, 5, step);
    expected.push_back(reference.loss);
    for (std::size_t i = 0; i < start.size(); ++i) {
      if (reference.gradients[i].defined()) start[i] = start[i] - 0.5 * reference.gradients[i];
    }
  }
  const Values again = start_values(both, 1);
  comm::run_ranks(4, [&](comm::Rank& rank) {
    at::set_num_threads(1);
    Executor executor(both, strategy, rank.world(), {.seed = 5, .descent = {.learning_rate = 0.5}});
    executor.load(again);
    for (double& loss : losses) {
      const StepResult result = executor.step(again);
      if (rank.rank() == 0) loss = result.loss, peak = result.peak_bytes;
    }
  });
  for (int step = 0; step < 3; ++step)
    EXPECT_NEAR(losses[static_cast<std::size_t>(step)], expected[static_cast<std::size_t>(step)], 1e-9);
  EXPECT_LT(losses[2], losses[0]);
  double everything = 0;
  for (std::size_t i = 0; i < both.tensors.size(); ++i) everything += lower(both, strategy).tensor_bytes[i];
  EXPECT_LT(peak, 0.9 * everything);
}

}  // namespace
}  // namespace trireme::spmd
