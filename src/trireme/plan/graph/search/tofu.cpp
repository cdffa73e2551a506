// Tofu (Wang 2019, 1807.08887): one axis of the mesh after the other. At each step every operator is cut in as many
// parts as the axis has ranks along one of its dimensions, on top of the cuts before; the coarse graph (forward,
// gradients and update of an operator together, followers joined, all steps of a cell one node) is solved exactly, and
// the recursion goes into the parts.
#include <algorithm>

#include "trireme/plan/graph/search/search.h"

namespace trireme::plan::graph {

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

}  // namespace trireme::plan::graph
