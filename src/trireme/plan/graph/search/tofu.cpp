// Tofu (Wang 2019, 1807.08887): one axis of the mesh after the other. At each step every operator is cut in as many
// parts as the axis has ranks along one of its dimensions, on top of the cuts before; the coarse graph (forward,
// gradients and update of an operator together, followers joined, all steps of a cell one node) is solved exactly, and
// the recursion goes into the parts.
//
// The paper's theorem, that the best cut of each step is a part of the best of all, holds where the cost of a cut does
// not depend on those before it but for the sizes that they leave. With the bytes that ranks really send it does not
// hold for several GEMMs (docs/graphs.md has an example), so the cuts are looked at again once all are there.
#include <algorithm>
#include <cmath>

#include "trireme/plan/graph/search/search.h"

namespace trireme::plan::graph {
namespace {

constexpr double kDimsOfAnOperator = 4;   // that an axis may split, and none
constexpr double kMostEntries = 1 << 17;  // of tables: what is larger takes seconds

}  // namespace

std::vector<TofuStep> tofu_steps(const Graph& both, const Pricing& pricing, bool heavy_are_split) {
  std::vector<TofuStep> steps;
  Strategy base = replicated(both, pricing.mesh());
  double before = 0;
  for (std::size_t axis = 0; axis < pricing.mesh().axes().size(); ++axis) {
    const ChoiceOptions options{.canonical = false,
                                .reduced = true,
                                .heavy_are_split = heavy_are_split,
                                .only_axis = static_cast<int>(axis),
                                .base = &base};
    const GraphProblem problem = make_problem(both, pricing, options);
    const Elimination found = eliminate(problem.problem);
    base = problem.strategy_of(both, found.assignment);
    const StrategyCost cost = price(both, lower(both, base), pricing);
    steps.push_back({base, cost.communication_seconds - before, cost.bytes});
    before = cost.communication_seconds;
  }
  if (steps.empty()) steps.push_back({base, 0, 0});
  return steps;
}

Strategy tofu_revisited(const Graph& both, const Pricing& pricing, bool heavy_are_split) {
  Strategy best = tofu_steps(both, pricing, heavy_are_split).back().strategy;
  const int axes = static_cast<int>(pricing.mesh().axes().size());
  double cost = price(both, lower(both, best), pricing).seconds;
  // Whether other splits along these axes, -1 and -1: along all, are better on top of all the others.
  const auto improves = [&](int axis, int other) {
    if (axis < 0 || other >= 0) {
      const double choices = std::pow(kDimsOfAnOperator, axis < 0 ? axes : 2);
      if (static_cast<double>(both.ops.size()) * choices * choices > kMostEntries) return false;
    }
    const GraphProblem problem = make_problem(both, pricing,
                                              {.canonical = false,
                                               .reduced = true,
                                               .heavy_are_split = heavy_are_split,
                                               .only_axis = axis,
                                               .other_axis = other,
                                               .base = &best});
    Strategy found = problem.strategy_of(both, eliminate(problem.problem).assignment);
    const double seconds = price(both, lower(both, found), pricing).seconds;
    if (seconds >= cost * (1 - 1e-12)) return false;
    best = std::move(found), cost = seconds;
    return true;
  };
  for (bool again = axes > 1; again;) {
    again = false;
    for (int axis = 0; axis < axes; ++axis) again = improves(axis, -1) || again;
    for (int axis = 0; axis < axes; ++axis) {
      for (int other = axis + 1; other < axes; ++other) again = improves(axis, other) || again;
    }
    again = improves(-1, -1) || again;
  }
  return best;
}

}  // namespace trireme::plan::graph
