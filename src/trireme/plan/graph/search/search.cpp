#include "trireme/plan/graph/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/base/units.h"
#include "trireme/plan/graph/random_strategy.h"
#include "trireme/plan/graph/search/flexflow.h"
#include "trireme/plan/graph/search/highs.h"
#include "trireme/plan/graph/search/liveness.h"
#include "trireme/plan/graph/search/pipelines.h"

namespace trireme::plan::graph {
namespace {

Found found_by(const std::string& method, Strategy strategy) {
  return {.method = method, .strategy = std::move(strategy), .cost = {}};
}

Found search_optcnn(const Graph& both, const Pricing& pricing) {
  const GraphProblem problem = make_problem(both, pricing);
  const Elimination best = eliminate(problem.problem);
  Found found = found_by("optcnn", problem.strategy_of(both, best.assignment));
  found.bound = best.cost;
  found.note = fmt::format("{} nodes, width {}, {} entries", problem.nodes.size(), best.width, best.entries);
  return found;
}

Found search_tofu(const Graph& both, const Pricing& pricing) {
  Found found = found_by("tofu", tofu_revisited(both, pricing));
  found.note = counted(std::max<std::size_t>(1, pricing.mesh().axes().size()), "cut");
  return found;
}

/// The program with a row of memory for each operator of the step is solved with few of them: those at which a solution
/// held too much. Without the others it is a relaxation, so its bound is one, and a solution that holds all is optimal.
Found search_alpa(const Graph& both, const Pricing& pricing, const SearchLimits& limits) {
  const auto start = std::chrono::steady_clock::now();
  // Alpa's meshes have two dimensions: there every axis may split every dimension. Of more axes the order is kept, or
  // tables would have hundreds of choices.
  const bool is_canonical = pricing.mesh().axes().size() > 2;
  GraphProblem problem = make_problem(both, pricing, {.canonical = is_canonical, .reduced = true});
  const LivenessRows live(both, problem.nodes, problem.choices, problem.mesh);
  const bool is_limited = limits.memory_bytes > 0;
  if (!is_limited) problem.problem.memory.clear();
  std::size_t rows = problem.problem.memory.empty() ? 0 : 1;
  const char* solver = "elimination";
  while (true) {
    const LimitedOptions options{.memory_bytes = limits.memory_bytes,
                                 .seconds = std::max(0.0, limits.seconds - seconds_since(start))};
    std::optional<Limited> by_highs = is_limited ? solve_by_highs(problem.problem, options) : std::nullopt;
    // Its solution may miss the limit by the solver's tolerance.
    if (by_highs && !by_highs->assignment && !by_highs->proven) by_highs.reset();
    const Limited best = by_highs ? *by_highs : solve_limited(problem.problem, options);
    if (!best.assignment) {
      Found none = found_by("alpa-intra", replicated(both, pricing.mesh()));
      none.note = best.proven ? "nothing fits into memory" : "nothing that fits was found in time";
      return none;
    }
    if (!best.proven || best.subproblems > 1 || best.cost > eliminate(problem.problem).cost * (1 + 1e-9))
      solver = by_highs ? "HiGHS" : "branching";
    const auto [op, bytes] = live.peak(*best.assignment);
    if (is_limited && bytes > limits.memory_bytes * (1 + 1e-12)) {
      if (seconds_since(start) >= limits.seconds) {
        Found none = found_by("alpa-intra", problem.strategy_of(both, *best.assignment));
        none.note = "nothing that fits was found in time";
        return none;
      }
      problem.problem.rows.push_back(live.row(op));
      ++rows;
      continue;
    }
    Found found = found_by("alpa-intra", problem.strategy_of(both, *best.assignment));
    found.bound = best.bound;
    found.note = best.proven ? fmt::format("proven by {}, {}", solver, counted(rows, "row"))
                             : fmt::format("time is up: gap {:.2f} %", 100 * best.gap());
    return found;
  }
}

/// The choices that a strategy is made of. A member that lacks a dimension says nothing of it, so of a node's choices
/// that one is taken under which most members are split as the strategy says; of equals the first.
Assignment assignment_of(const Graph& both, const GraphProblem& problem, const Strategy& strategy) {
  Assignment assignment;
  for (std::size_t node = 0; node < problem.nodes.size(); ++node) {
    std::vector<IterationSpace> spaces;
    for (const int op : problem.nodes[node]) spaces.push_back(iteration_space(both, both.op(op)));
    int chosen = 0, most = -1;
    for (std::size_t choice = 0; choice < problem.choices[node].size(); ++choice) {
      int alike = 0;
      for (std::size_t i = 0; i < spaces.size(); ++i) {
        Split split = problem.choices[node][choice];
        for (int& dim : split) dim = dim >= 0 && spaces[i].find(dim) >= 0 ? dim : -1;
        alike += split == strategy.splits[static_cast<std::size_t>(problem.nodes[node][i])] ? 1 : 0;
      }
      if (alike > most) most = alike, chosen = static_cast<int>(choice);
    }
    assignment.push_back(chosen);
  }
  return assignment;
}

Found search_flexflow(const Graph& both, const Pricing& pricing, const SearchLimits& limits) {
  const GraphProblem problem = make_problem(both, pricing, {.canonical = true, .reduced = true});
  FlexFlow flexflow(both, pricing, problem);
  std::vector<Assignment> starts{assignment_of(both, problem, data_parallel(both, pricing.mesh())),
                                 assignment_of(both, problem, one_weird_trick(both, pricing.mesh()))};
  if (const auto expert = megatron(both, pricing.mesh(), pricing.hardware().cluster.gpus_per_node))
    starts.push_back(assignment_of(both, problem, *expert));
  for (const std::uint64_t seed : {1U, 2U})
    starts.push_back(assignment_of(both, problem, random_strategy(both, pricing.mesh(), seed)));
  const FlexFlowResult best = flexflow.search(starts, {.seconds = limits.seconds, .memory_bytes = limits.memory_bytes});
  Found found = found_by("flexflow", problem.strategy_of(both, best.assignment));
  found.note = fmt::format("{} with overlap, {} proposals, {:.0f} a second", short_seconds(best.simulated),
                           best.proposals, best.proposals / std::max(best.seconds, 1e-9));
  return found;
}

}  // namespace

std::vector<std::string> search_methods() {
  return {"data-parallel", "model-parallel", "one-weird-trick", "megatron",  "optcnn",    "tofu",      "alpa-intra",
          "flexflow",      "alpa",           "rannc",           "galvatron", "pipedream", "torchgpipe"};
}

std::optional<Published> published_of(std::string_view method) {
  constexpr std::pair<std::string_view, Published> kPublished[] = {
      {"optcnn", {"1.4-2.2x", "over data and model parallelism, AlexNet to Inception-v3 on 16 P100"}},
      {"flexflow", {"1.3-3.3x", "over data parallelism and experts' strategies, on up to 64 GPUs"}},
      {"tofu", {"1.25-5x", "over other ways of training very large models, on 8 GPUs"}},
      {"alpa", {"3.5x, 9.7x", "over DeepSpeed, mixtures of experts on two and four nodes"}},
      {"pipedream", {"5.12x", "over data parallelism, VGG-16 on 8 V100 at 10 Gbit/s"}},
      {"torchgpipe", {"4.95x", "over two stages without micro-batches, AmoebaNet-D on 8 GPUs"}},
  };
  for (const auto& [name, published] : kPublished) {
    if (name == method) return published;
  }
  return std::nullopt;
}

std::optional<Found> search(const std::string& method, const Graph& both, const Pricing& pricing,
                            const SearchLimits& limits) {
  const auto start = std::chrono::steady_clock::now();
  std::optional<Found> found;
  if (method == "data-parallel") {
    found = found_by(method, data_parallel(both, pricing.mesh()));
  } else if (method == "model-parallel") {
    found = found_by(method, model_parallel(both, pricing.mesh()));
  } else if (method == "one-weird-trick") {
    found = found_by(method, one_weird_trick(both, pricing.mesh()));
  } else if (method == "megatron") {
    if (auto strategy = megatron(both, pricing.mesh(), pricing.hardware().cluster.gpus_per_node))
      found = found_by(method, std::move(*strategy));
  } else if (method == "optcnn") {
    found = search_optcnn(both, pricing);
  } else if (method == "tofu") {
    found = search_tofu(both, pricing);
  } else if (method == "alpa-intra") {
    found = search_alpa(both, pricing, limits);
  } else if (method == "flexflow") {
    found = search_flexflow(both, pricing, limits);
  } else if (method == "alpa") {
    found = search_alpa_stages(both, pricing, limits);
  } else if (method == "rannc") {
    found = search_rannc(both, pricing, limits);
  } else if (method == "galvatron") {
    found = search_galvatron(both, pricing, limits);
  } else if (method == "pipedream") {
    found = search_pipedream(both, pricing, limits);
  } else if (method == "torchgpipe") {
    found = search_torchgpipe(both, pricing, limits);
  } else {
    const std::vector<std::string> names = search_methods();
    throw ConfigError(fmt::format("there is no search {}{}", method, did_you_mean(method, names)),
                      "methods are " + listed(names));
  }
  if (!found) return found;
  found->search_seconds = seconds_since(start);
  if (!found->pipeline.empty()) return found;
  found->cost = price(both, lower(both, found->strategy), pricing);
  found->fits = limits.memory_bytes <= 0 || found->cost.memory_bytes <= limits.memory_bytes;
  return found;
}

std::vector<double> seconds_by_op(const Graph& both, const Pricing& pricing, const Strategy& strategy) {
  const Lowering lowering = lower(both, strategy);
  std::vector<double> seconds(strategy.splits.size(), 0);
  const auto at = [&](int op) -> double& {
    return seconds[static_cast<std::size_t>(both.op(op).forward >= 0 ? both.op(op).forward : op)];
  };
  for (std::size_t i = 0; i < both.ops.size(); ++i)
    at(static_cast<int>(i)) +=
        pricing.seconds(both, both.ops[i], iteration_space(both, both.ops[i]), lowering.degrees[i]);
  for (const Inserted& inserted : lowering.inserted)
    at(inserted.op) +=
        inserted.phase == Phase::kUpdate ? pricing.reduction_seconds(inserted.step) : pricing.seconds(inserted.step);
  return seconds;
}

std::vector<Reason> explain(const Graph& both, const Pricing& pricing, const Strategy& strategy) {
  const GraphProblem problem = make_problem(both, pricing, {.canonical = true, .reduced = true, .also = &strategy});
  const Assignment assignment = assignment_of(both, problem, strategy);
  const double now = cost_of(problem.problem, assignment);
  std::vector<Reason> reasons;
  for (std::size_t node = 0; node < problem.nodes.size(); ++node) {
    const auto& choices = problem.choices[node];
    Reason reason{.op = problem.nodes[node][0],
                  .split = to_text(both, pricing.mesh(), choices[static_cast<std::size_t>(assignment[node])]),
                  .other = {},
                  .seconds = problem.problem.cost[node][static_cast<std::size_t>(assignment[node])]};
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t choice = 0; choice < choices.size(); ++choice) {
      if (static_cast<int>(choice) == assignment[node]) continue;
      Assignment other = assignment;
      other[node] = static_cast<int>(choice);
      const double cost = cost_of(problem.problem, other);
      if (cost >= least) continue;
      least = cost;
      reason.other = to_text(both, pricing.mesh(), choices[choice]);
      reason.more = cost - now;
    }
    reasons.push_back(std::move(reason));
  }
  return reasons;
}

std::vector<Difference> differences(const Graph& both, const Pricing& pricing, const Strategy& best,
                                    const Strategy& other, std::size_t most) {
  const std::vector<double> ours = seconds_by_op(both, pricing, best), theirs = seconds_by_op(both, pricing, other);
  std::vector<Difference> all;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (theirs[i] > ours[i])
      all.push_back({static_cast<int>(i), theirs[i] - ours[i], to_text(both, pricing.mesh(), best.splits[i]),
                     to_text(both, pricing.mesh(), other.splits[i])});
  }
  std::ranges::stable_sort(all, [](const Difference& a, const Difference& b) { return a.seconds > b.seconds; });
  if (all.size() > most) all.resize(most);
  return all;
}

}  // namespace trireme::plan::graph
