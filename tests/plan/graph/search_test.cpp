// Searches: exact ones against brute force, tables against lowerings, and what the papers say their plans look like.
#include "trireme/plan/graph/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/plan/graph/p100_nodes.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/models.h"
#include "trireme/plan/graph/search/highs.h"
#include "trireme/plan/graph/search/liveness.h"

namespace trireme::plan::graph {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Dice {
  Random random;
  std::uint64_t draws = 0;
  explicit Dice(std::uint64_t seed) : random(seed, "search") {}
  int below(int n) { return static_cast<int>(random.below(static_cast<std::uint64_t>(n), draws++)); }
  double uniform() { return random.uniform(draws++); }
};

/// Up to eight nodes, a chain with some edges that skip, up to four choices, costs that tie now and then.
SearchProblem random_problem(Dice& dice) {
  SearchProblem problem;
  const int nodes = 1 + dice.below(8);
  const auto cost = [&] { return dice.below(3) == 0 ? static_cast<double>(dice.below(4)) : 10 * dice.uniform(); };
  for (int i = 0; i < nodes; ++i) {
    problem.cost.emplace_back();
    problem.memory.emplace_back();
    for (int c = 1 + dice.below(4); c > 0; --c) {
      problem.cost.back().push_back(cost());
      problem.memory.back().push_back(1 + 9 * dice.uniform());
    }
  }
  for (int b = 1; b < nodes; ++b) {
    for (int a = 0; a < b; ++a) {
      if (a + 1 != b && dice.below(4) != 0) continue;
      PairCost pair{a, b, {}};
      for (std::size_t i = 0; i < problem.cost[std::size_t(a)].size() * problem.cost[std::size_t(b)].size(); ++i)
        pair.cost.push_back(cost());
      problem.pairs.push_back(std::move(pair));
    }
  }
  return problem;
}

TEST(Elimination, EqualsBruteForceOnRandomGraphsInAnyOrder) {
  Dice dice(1);
  for (int round = 0; round < 500; ++round) {
    const SearchProblem problem = random_problem(dice);
    const auto best = brute_force(problem);
    ASSERT_TRUE(best);
    const Elimination found = eliminate(problem);
    ASSERT_NEAR(found.cost, best->cost, 1e-9) << round;
    ASSERT_NEAR(cost_of(problem, found.assignment), found.cost, 1e-12);
    std::vector<int> order(problem.cost.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[std::size_t(dice.below(int(i)))]);
    ASSERT_NEAR(eliminate(problem, order).cost, best->cost, 1e-9) << round;
  }
}

TEST(Elimination, TakesTheLeastIndexAmongEqualsAndRefusesTablesThatAreTooLarge) {
  SearchProblem problem;
  problem.cost = {{1, 1, 1}, {2, 2}};
  problem.pairs = {{0, 1, {0, 0, 0, 0, 0, 0}}};
  EXPECT_EQ(eliminate(problem).assignment, (Assignment{0, 0}));
  EXPECT_THROW(eliminate(problem, {}, 5), ConfigError);
  EXPECT_FALSE(brute_force(problem, 5));
}

TEST(LimitedSearch, EqualsBruteForceUnderMemoryLimitsAndProvesIt) {
  Dice dice(2);
  int bound_by_memory = 0, impossible = 0;
  for (int round = 0; round < 150; ++round) {
    const SearchProblem problem = random_problem(dice);
    double least = 0, most = 0;
    for (const auto& memory : problem.memory) {
      least += *std::ranges::min_element(memory);
      most += *std::ranges::max_element(memory);
    }
    const double limit = least + (most - least) * (1.2 * dice.uniform() - 0.1);
    double best = std::numeric_limits<double>::infinity();
    Assignment tried(problem.cost.size(), 0);
    for (bool more = true; more;) {
      if (memory_of(problem, tried) <= limit) best = std::min(best, cost_of(problem, tried));
      std::size_t i = tried.size();
      while (i > 0 && ++tried[i - 1] == static_cast<int>(problem.cost[i - 1].size())) tried[--i] = 0;
      more = i > 0;
    }
    const Limited found =
        solve_limited(problem, {.memory_bytes = limit, .enumerate_below = round % 2 == 0 ? 30.0 : 1e5});
    ASSERT_TRUE(found.proven) << round;
    ASSERT_EQ(found.assignment.has_value(), std::isfinite(best)) << round;
    if (!found.assignment) {
      ++impossible;
      continue;
    }
    ASSERT_NEAR(found.cost, best, 1e-8 * std::max(1.0, best)) << round;
    ASSERT_LE(memory_of(problem, *found.assignment), limit);
    bound_by_memory += best > eliminate(problem).cost + 1e-9;
  }
  EXPECT_GT(bound_by_memory, 25);
  EXPECT_GT(impossible, 2);
}

/// Memory of a second and a third operator.
void add_rows(Dice& dice, SearchProblem& problem) {
  for (int row = 0; row < 2; ++row) {
    problem.rows.push_back(problem.memory);
    for (auto& node : problem.rows.back()) {
      for (double& bytes : node) bytes = 1 + 9 * dice.uniform();
    }
  }
}

/// The cheapest that fits, by looking at all; infinite where none does.
double best_that_fits(const SearchProblem& problem, double limit) {
  double best = std::numeric_limits<double>::infinity();
  Assignment tried(problem.cost.size(), 0);
  for (bool more = true; more;) {
    if (memory_of(problem, tried) <= limit) best = std::min(best, cost_of(problem, tried));
    std::size_t i = tried.size();
    while (i > 0 && ++tried[i - 1] == static_cast<int>(problem.cost[i - 1].size())) tried[--i] = 0;
    more = i > 0;
  }
  return best;
}

double drawn_limit(Dice& dice, const SearchProblem& problem) {
  double least = 0, most = 0;
  for (const auto& memory : problem.memory) {
    least += *std::ranges::min_element(memory);
    most += *std::ranges::max_element(memory);
  }
  return least + (most - least) * (1.2 * dice.uniform() - 0.1);
}

TEST(LimitedSearch, EqualsBruteForceUnderSeveralRowsOfMemory) {
  Dice dice(12);
  int bound_by_memory = 0, impossible = 0;
  for (int round = 0; round < 150; ++round) {
    SearchProblem problem = random_problem(dice);
    add_rows(dice, problem);
    const double limit = drawn_limit(dice, problem), best = best_that_fits(problem, limit);
    const Limited found =
        solve_limited(problem, {.memory_bytes = limit, .enumerate_below = round % 2 == 0 ? 10.0 : 1e5});
    ASSERT_TRUE(found.proven) << round;
    ASSERT_EQ(found.assignment.has_value(), std::isfinite(best)) << round;
    impossible += found.assignment ? 0 : 1;
    if (!found.assignment) continue;
    ASSERT_NEAR(found.cost, best, 1e-8 * std::max(1.0, best)) << round;
    ASSERT_LE(memory_of(problem, *found.assignment), limit);
    bound_by_memory += best > eliminate(problem).cost + 1e-9;
  }
  EXPECT_GT(bound_by_memory, 25);
  EXPECT_GT(impossible, 10);
}

TEST(Highs, SolvesTheIntegerProgramAsBranchingAndBruteForceDo) {
  if (!highs_library()) GTEST_SKIP() << "HiGHS is not there: scripts/setup --highs";
  Dice dice(13);
  int bound_by_memory = 0, impossible = 0;
  for (int round = 0; round < 100; ++round) {
    SearchProblem problem = random_problem(dice);
    if (round % 2 == 0) add_rows(dice, problem);
    // Seconds of a step: the solver's tolerances are absolute.
    for (auto& node : problem.cost) {
      for (double& cost : node) cost *= 1e-6;
    }
    for (PairCost& pair : problem.pairs) {
      for (double& cost : pair.cost) cost *= 1e-6;
    }
    const double limit = drawn_limit(dice, problem), best = best_that_fits(problem, limit);
    const Limited found = *solve_by_highs(problem, {.memory_bytes = limit});
    ASSERT_TRUE(found.proven) << round;
    ASSERT_EQ(found.assignment.has_value(), std::isfinite(best)) << round;
    impossible += found.assignment ? 0 : 1;
    if (!found.assignment) continue;
    ASSERT_NEAR(found.cost, best, 1e-6 * best) << round;
    ASSERT_LE(found.bound, best * (1 + 1e-6)) << round;
    ASSERT_LE(memory_of(problem, *found.assignment), limit);
    bound_by_memory += best > eliminate(problem).cost * (1 + 1e-6);
  }
  EXPECT_GT(bound_by_memory, 15);
  EXPECT_GT(impossible, 2);
}

TEST(LivenessRows, TheLargestOfAnAssignmentIsTheMemoryOfItsLowering) {
  const layout::Mesh mesh = layout::parse_mesh("a=2 b=2");
  const Pricing pricing(p100_nodes(), mesh);
  const Graph graphs[] = {
      with_backward(alexnet({.batch = 32, .size = 96, .classes = 16, .width = 8})),
      with_backward(resnet(14, 1, {.batch = 8, .size = 64, .classes = 8, .width = 8})),
      with_backward(lstm_language_model({.batch = 8, .steps = 3, .hidden = 16, .vocab = 32})),
      with_backward(gpt(
          "gpt", {.batch = 4, .seq_len = 16, .layers = 2, .hidden = 16, .heads = 4, .vocab = 32, .positions = 16}))};
  Dice dice(14);
  for (const Graph& both : graphs) {
    const GraphProblem problem = make_problem(both, pricing, {.canonical = false, .reduced = true});
    const LivenessRows live(both, problem.nodes, problem.choices, mesh);
    for (int round = 0; round < 20; ++round) {
      Assignment assignment;
      for (const auto& choices : problem.choices) assignment.push_back(dice.below(static_cast<int>(choices.size())));
      const StrategyCost cost = price(both, lower(both, problem.strategy_of(both, assignment)), pricing);
      const auto [op, bytes] = live.peak(assignment);
      ASSERT_NEAR(bytes, cost.memory_bytes, 1e-9 * bytes) << both.name;
      ASSERT_NEAR(memory_of(live.row(op), assignment), bytes, 1e-9 * bytes) << both.name;
    }
  }
}

/// A device that holds just what some strategy needs: the search finds one that fits wherever another method has one.
TEST(AlpaIntra, UnderAMemoryLimitIsAtLeastAsFastAsWhateverElseFits) {
  const Graph graphs[] = {
      with_backward(vgg(16, {.batch = 8, .size = 64, .classes = 64, .width = 4})),
      with_backward(gpt(
          "gpt", {.batch = 8, .seq_len = 32, .layers = 2, .hidden = 128, .heads = 4, .vocab = 512, .positions = 32}))};
  const Pricing pricing(p100_nodes(), factored_mesh(4));
  for (const Graph& both : graphs) {
    const StrategyCost data = search("data-parallel", both, pricing, {})->cost;
    const Found free = *search("alpa-intra", both, pricing, {.memory_bytes = 1e15});
    const Found tofu = *search("tofu", both, pricing, {});
    std::vector<double> limits{data.memory_bytes, tofu.cost.memory_bytes, free.cost.memory_bytes * 0.9};
    double before = 0;
    std::ranges::sort(limits, std::greater());
    for (const double limit : limits) {
      const Found found = *search("alpa-intra", both, pricing, {.memory_bytes = limit, .seconds = 20});
      EXPECT_TRUE(found.fits) << both.name << " in " << limit << ": " << found.note;
      EXPECT_THAT(found.note, HasSubstr("proven")) << both.name << " in " << limit;
      EXPECT_GE(found.cost.seconds, before * (1 - 1e-9)) << "less memory is never faster";
      before = found.cost.seconds;
      for (const Found* other : {&tofu, &free}) {
        if (other->cost.memory_bytes <= limit) {
          EXPECT_LE(found.cost.seconds, other->cost.seconds * (1 + 1e-9)) << both.name << " in " << limit;
        }
      }
    }
    EXPECT_THAT(search("alpa-intra", both, pricing, {.memory_bytes = 1000})->note, HasSubstr("nothing fits"));
  }
}

/// Each operator's reason is of the split that the strategy has, and of an optimum none is a saving.
TEST(Explain, IsOfTheStrategyThatWasFound) {
  const Graph both = with_backward(vgg(16, {.batch = 32, .size = 64, .classes = 1000}));
  const Pricing pricing(p100_nodes(), factored_mesh(4));
  for (const char* method : {"alpa-intra", "tofu", "optcnn", "one-weird-trick"}) {
    const Found found = *search(method, both, pricing, {.memory_bytes = 1e15});
    bool any_sum = false;
    for (const Reason& reason : explain(both, pricing, found.strategy)) {
      const Split& split = found.strategy.splits[static_cast<std::size_t>(reason.op)];
      EXPECT_EQ(reason.split, to_text(both, pricing.mesh(), split)) << method << " at " << both.op(reason.op).name;
      any_sum = any_sum || reason.split.find("features") != std::string::npos;
      if (std::string_view(method) == "alpa-intra") {
        EXPECT_GE(reason.more, -1e-12) << both.op(reason.op).name << ": " << reason.other;
      }
    }
    EXPECT_TRUE(any_sum || std::string_view(method) != "alpa-intra") << "fc6 is split by what it sums over";
  }
}

TEST(LimitedSearch, AtItsTimeLimitReturnsWhatItHasAndAGap) {
  Dice dice(3);
  SearchProblem problem = random_problem(dice);
  while (problem.cost.size() < 8) problem = random_problem(dice);
  double middle = 0;
  for (const auto& memory : problem.memory) middle += (memory.front() + memory.back()) / 2;
  const Limited found = solve_limited(problem, {.memory_bytes = middle, .seconds = 0, .enumerate_below = 0});
  EXPECT_LE(found.bound, found.cost);
}

TEST(CostTable, OfAnAssignmentIsTheTimeOfItsLowering) {
  const layout::Mesh mesh = layout::parse_mesh("a=2 b=2");
  const Pricing pricing(p100_nodes(), mesh);
  const Graph graphs[] = {
      with_backward(alexnet({.batch = 32, .size = 96, .classes = 16, .width = 8})),
      with_backward(resnet(14, 1, {.batch = 8, .size = 64, .classes = 8, .width = 8})),
      with_backward(lstm_language_model({.batch = 8, .steps = 3, .hidden = 16, .vocab = 32})),
      with_backward(
          gpt("gpt", {.batch = 4, .seq_len = 16, .layers = 2, .hidden = 16, .heads = 4, .vocab = 32, .positions = 16})),
      with_backward(moe({.groups = 4, .tokens = 8, .hidden = 8, .heads = 2, .ffn = 16, .experts = 4}))};
  Dice dice(4);
  for (const Graph& both : graphs) {
    const GraphProblem problem = make_problem(both, pricing, {.canonical = false, .reduced = true});
    for (int round = 0; round < 40; ++round) {
      Assignment assignment;
      for (const auto& choices : problem.choices) assignment.push_back(dice.below(static_cast<int>(choices.size())));
      const Strategy strategy = problem.strategy_of(both, assignment);
      ASSERT_THAT(find_problems(both, strategy), IsEmpty()) << both.name;
      const double seconds = price(both, lower(both, strategy), pricing).seconds;
      ASSERT_NEAR(cost_of(problem.problem, assignment), seconds, 1e-9 * seconds) << both.name;
    }
  }
}

/// Parts of a dimension in a strategy.
int parts(const Graph& both, const Strategy& strategy, const std::string& op, int dim) {
  int product = 1;
  const Split& split = strategy.splits[static_cast<std::size_t>(both.find_op(op))];
  for (std::size_t axis = 0; axis < split.size(); ++axis) {
    if (split[axis] == dim) product *= strategy.mesh.axes()[axis].size;
  }
  return product;
}

TEST(OptCnn, SplitsFullyConnectedLayersByChannelAndConvolutionsBySample) {
  for (const char* name : {"alexnet", "vgg16"}) {
    for (const int devices : {4, 16}) {
      const Graph both = with_backward(build_model(name, 32 * devices));
      const Pricing pricing(p100_nodes(), factored_mesh(devices));
      const Found best = *search("optcnn", both, pricing, {});
      const Found trick = *search("one-weird-trick", both, pricing, {}),
                  data = *search("data-parallel", both, pricing, {});
      EXPECT_LE(best.cost.seconds, trick.cost.seconds * (1 + 1e-9)) << name << devices;
      EXPECT_LE(trick.cost.seconds, data.cost.seconds) << name << devices;
      EXPECT_NEAR(best.cost.seconds, *best.bound, 1e-9 * best.cost.seconds);
      const int samples = sample_dim(both);
      for (std::size_t i = 0; i < best.strategy.splits.size(); ++i) {
        const Op& op = both.ops[i];
        if (op.kind != OpKind::kConvolution) continue;
        EXPECT_EQ(parts(both, best.strategy, op.name, both.tensor(op.outputs[0]).dims[1]), 1) << name << " " << op.name;
      }
      for (const char* layer : {"fc6", "fc7"}) {
        const int channels = both.find_dim(std::string(layer) + ".out");
        const int by_channel = parts(both, best.strategy, layer, channels);
        EXPECT_GE(by_channel, 4) << name << " on " << devices << ": " << layer;
        EXPECT_GE(by_channel, parts(both, best.strategy, layer, samples)) << name << " on " << devices << ": " << layer;
      }
    }
  }
}

TEST(Search, NoMethodBeatsTheExactOneInItsSpaceAndAllOfThemRun) {
  const Graph both = with_backward(resnet(14, 1, {.batch = 32, .size = 64, .classes = 16, .width = 4}));
  const Pricing pricing(p100_nodes(), factored_mesh(4));
  const SearchLimits limits{.memory_bytes = 16e9, .seconds = 20};
  const Found exact = *search("optcnn", both, pricing, limits);
  for (const std::string& method : search_methods()) {
    const auto found = search(method, both, pricing, limits);
    if (!found) continue;
    EXPECT_THAT(find_problems(both, found->strategy), IsEmpty()) << method;
    EXPECT_GT(found->cost.seconds, 0);
    const bool in_space = method.ends_with("parallel") || method == "one-weird-trick";
    EXPECT_GE(found->cost.seconds, in_space ? exact.cost.seconds * (1 - 1e-9) : 0) << method;
    EXPECT_EQ(parse_strategy(both, to_text(both, found->strategy), "text"), found->strategy);
  }
  EXPECT_FALSE(search("megatron", both, pricing, limits)) << "it has no heads";
  EXPECT_THROW(search("optcn", both, pricing, limits), ConfigError);
}

TEST(Search, AlpaOnATransformerIsAtLeastAsFastAsMegatron) {
  const Graph both = with_backward(gpt(
      "gpt", {.batch = 8, .seq_len = 256, .layers = 2, .hidden = 512, .heads = 8, .vocab = 1024, .positions = 256}));
  const Pricing pricing(p100_nodes(), factored_mesh(4));
  const SearchLimits limits{.memory_bytes = 16e9, .seconds = 20};
  const Found ours = *search("alpa-intra", both, pricing, limits), theirs = *search("megatron", both, pricing, limits);
  EXPECT_LE(ours.cost.seconds, theirs.cost.seconds * (1 + 1e-9));
  const std::vector<Difference> why = differences(both, pricing, ours.strategy, theirs.strategy);
  double sum = 0;
  for (const Difference& difference : why) sum += difference.seconds;
  EXPECT_GE(sum, 0);
}

/// Fully connected layers of drawn widths, some with a way around them.
Graph drawn_chain(Dice& dice) {
  Builder build("chain");
  const auto width = [&] { return Index{64} << dice.below(5); };
  const int n = build.dim("n", width());
  int x = build.input("x", {n, build.dim("w0", width())});
  int around = -1;
  const int layers = 2 + dice.below(4);
  for (int i = 1; i <= layers; ++i) {
    const bool same = around >= 0 && dice.below(2) == 0;
    const int to = same ? build.dims_of(around)[1] : build.dim("w" + std::to_string(i), width());
    const int y = build.linear("fc" + std::to_string(i), x, to, /*bias=*/false);
    const int next = same && around != x && build.dims_of(y) == build.dims_of(around)
                         ? build.elementwise("add" + std::to_string(i), "add", {y, around})
                         : y;
    around = x;
    x = next;
  }
  build.loss("loss", x, build.indices("labels", {n}), build.dims_of(x)[1]);
  return build.finish();
}

/// Where only bytes count: a second for each GB that a device sends, computing and latencies for nothing.
cost::Hardware bytes_alone() {
  cost::Hardware hardware = p100_nodes();
  hardware.device.fp32_tflops = 1e12;
  hardware.device.memory_gb_per_s = 1e15;
  hardware.device.efficiency = {.matmul = 1, .memory = 1, .attention = 1, .link = 1, .kernel_seconds = 0};
  hardware.cluster.gpus_per_node = 8;
  hardware.cluster.link = {.kind = "nvlink", .gb_per_s = 1, .latency_us = 0};
  return hardware;
}

/// The cost of the recursion and of the best strategy at all, every GEMM divided by every cut.
std::pair<double, double> recursive_and_flat(const Graph& both, const Pricing& pricing) {
  const std::vector<TofuStep> steps = tofu_steps(both, pricing, /*heavy_are_split=*/true);
  const GraphProblem flat = make_problem(both, pricing, {.canonical = false, .reduced = true, .heavy_are_split = true});
  return {price(both, lower(both, steps.back().strategy), pricing).seconds, eliminate(flat.problem).cost};
}

/// Where only bytes count, an operand costs its size times 2^l - 1 for l cuts along dimensions that it does not have: a
/// sum of convex functions, one for each operand of a GEMM. Then the best cut of each level is the best of all.
TEST(Tofu, RecursionOnOneGemmIsTheFlatOptimum) {
  Dice dice(9);
  for (int round = 0; round < 60; ++round) {
    Builder build("gemm");
    const auto size = [&] { return Index{64} << dice.below(6); };
    const int n = build.dim("n", size());
    const int x = build.linear("before", build.input("x", {n, build.dim("k", size())}), build.dim("m", size()), false);
    build.loss("loss", x, build.indices("labels", {n}), build.dims_of(x)[1]);
    const Graph both = with_backward(build.finish());
    const auto [found, best] = recursive_and_flat(both, Pricing(bytes_alone(), factored_mesh(round % 2 == 0 ? 4 : 8)));
    EXPECT_NEAR(found, best, 1e-9 * best) << round;
  }
}

/// Of several GEMMs the costs are not separable: a cut that is best by itself may take half of each of two cuts that
/// are better together. So the recursion is a heuristic there; what must hold is that every cut is the best on top of
/// those above it, and that nothing is better than the flat optimum.
TEST(Tofu, EveryCutIsTheBestOnTopOfThoseAboveIt) {
  Dice dice(9);
  int equal = 0;
  double worst = 1;
  constexpr int kRounds = 60;
  for (int round = 0; round < kRounds; ++round) {
    const Graph both = with_backward(drawn_chain(dice));
    const Pricing pricing(bytes_alone(), factored_mesh(round % 2 == 0 ? 4 : 8));
    const std::vector<TofuStep> steps = tofu_steps(both, pricing, /*heavy_are_split=*/true);
    Strategy base = replicated(both, pricing.mesh());
    for (std::size_t axis = 0; axis < steps.size(); ++axis) {
      const GraphProblem problem = make_problem(both, pricing,
                                                {.canonical = false,
                                                 .reduced = true,
                                                 .heavy_are_split = true,
                                                 .only_axis = static_cast<int>(axis),
                                                 .base = &base});
      const auto best = brute_force(problem.problem);
      ASSERT_TRUE(best);
      const double found = price(both, lower(both, steps[axis].strategy), pricing).seconds;
      ASSERT_NEAR(found, best->cost, 1e-9 * best->cost) << round << ", cut " << axis;
      base = steps[axis].strategy;
    }
    const auto [found, best] = recursive_and_flat(both, pricing);
    EXPECT_GE(found, best * (1 - 1e-9)) << round;
    equal += found <= best * (1 + 1e-9) ? 1 : 0;
    worst = std::max(worst, found / best);
  }
  EXPECT_GE(equal, kRounds / 2) << worst;
  EXPECT_LE(worst, 2);
}

/// What the recursion misses, its cuts find once each knows the others.
TEST(Tofu, RevisitedCutsAreTheFlatOptimumOfSmallGraphs) {
  Dice dice(9);
  int greedy = 0, equal = 0;
  double worst = 1;
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    const Graph both = with_backward(drawn_chain(dice));
    const Pricing pricing(bytes_alone(), factored_mesh(round % 2 == 0 ? 4 : 8));
    const auto [recursive, best] = recursive_and_flat(both, pricing);
    const Strategy found = tofu_revisited(both, pricing, /*heavy_are_split=*/true);
    const double seconds = price(both, lower(both, found), pricing).seconds;
    ASSERT_GE(seconds, best * (1 - 1e-9)) << round;
    greedy += recursive <= best * (1 + 1e-9) ? 1 : 0;
    equal += seconds <= best * (1 + 1e-9) ? 1 : 0;
    worst = std::max(worst, seconds / best);
  }
  EXPECT_LT(greedy, kRounds) << "these graphs no longer tell the two apart";
  EXPECT_EQ(equal, kRounds) << worst;
}

/// What a device holds of all tensors, beside what one device would hold alone.
double share_of_a_device(const Graph& both, int devices) {
  const Pricing pricing(bytes_alone(), factored_mesh(devices));
  const Strategy found = tofu_steps(both, pricing, /*heavy_are_split=*/true).back().strategy;
  const std::vector<double> split = lower(both, found).tensor_bytes;
  const std::vector<double> whole = lower(both, replicated(both, pricing.mesh())).tensor_bytes;
  return std::accumulate(split.begin(), split.end(), 0.0) / std::accumulate(whole.begin(), whole.end(), 0.0);
}

TEST(Tofu, DevicesHoldTheirShareOfModelsTooLargeForOne) {
  const Graph wide = with_backward(resnet(152, 10, {.batch = 8, .size = 224, .classes = 1000}));
  const Graph rnn = with_backward(lstm_language_model({.batch = 64, .steps = 3, .layers = 4, .hidden = 8192}));
  for (const int devices : {2, 4, 8}) {
    // Tensors that no cut divides are held whole here, where the paper stores them in parts: a few of the residual one.
    EXPECT_LE(share_of_a_device(wide, devices), 1.45 / devices) << devices;
    EXPECT_LE(share_of_a_device(rnn, devices), 1.1 / devices) << devices;
  }
}

TEST(Tofu, StepsOnASmallNetReachTheFlatOptimum) {
  const Graph both = with_backward(alexnet({.batch = 16, .size = 64, .classes = 16, .width = 16}));
  const Pricing pricing(p100_nodes(), factored_mesh(4));
  const std::vector<TofuStep> steps = tofu_steps(both, pricing);
  ASSERT_EQ(steps.size(), 2U);
  const GraphProblem flat = make_problem(both, pricing, {.canonical = false, .reduced = true});
  const double best = eliminate(flat.problem).cost;
  const double found = price(both, lower(both, steps.back().strategy), pricing).seconds;
  EXPECT_GE(found, best * (1 - 1e-9));
  EXPECT_LE(found, best * 1.05) << "the recursion is greedy: Tofu's theorem is for costs without latency";
  const double revisited = price(both, lower(both, tofu_revisited(both, pricing)), pricing).seconds;
  EXPECT_NEAR(revisited, best, 1e-9 * best);
}

}  // namespace
}  // namespace trireme::plan::graph
