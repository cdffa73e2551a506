#include "trireme/plan/graph/search/galvatron.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

constexpr double kTooMuch = std::numeric_limits<double>::infinity();

int units_of(const GalvatronProblem& problem, double bytes) {
  return static_cast<int>(std::ceil(bytes / problem.unit_bytes - 1e-9));
}

void add_leaves(std::vector<LayerStrategy>& leaves, LayerStrategy strategy, const GalvatronSpace& space) {
  for (const bool sharded : {false, true}) {
    if (sharded && (!space.sharded || strategy.dp == 1)) continue;
    for (const bool recompute : {false, true}) {
      if (recompute && !space.recompute) continue;
      strategy.sharded = sharded;
      strategy.recompute = recompute;
      leaves.push_back(strategy);
    }
  }
}

}  // namespace

std::string to_text(const LayerStrategy& strategy) {
  return fmt::format("{}-{}{}-{}{}{}{}", strategy.pp, strategy.tp, strategy.tp > 1 ? "*" : "", strategy.dp,
                     strategy.sharded ? "f" : "", strategy.recompute ? "-c" : "",
                     strategy.sequence_parallel ? "-sp" : "");
}

std::vector<LayerStrategy> layer_strategies(const GalvatronSpace& space) {
  if (space.devices < 1 || (space.devices & (space.devices - 1)) != 0)
    throw ConfigError(fmt::format("Galvatron's tree is of powers of two; {} devices are none", space.devices),
                      "search with 2, 4, 8, ... devices");
  std::vector<LayerStrategy> leaves;
  for (int pp = 1; pp <= (space.pipeline ? space.devices : 1); pp *= 2) {
    const int stage = space.devices / pp;
    add_leaves(leaves, {.pp = pp, .tp = 1, .dp = stage}, space);
    for (const bool sequence_parallel : {true, false}) {
      if (sequence_parallel && !space.sequence_parallel) continue;
      for (int tp = 2; space.tensor && tp <= stage; tp *= 2)
        add_leaves(leaves, {.pp = pp, .tp = tp, .dp = stage / tp, .sequence_parallel = sequence_parallel}, space);
    }
  }
  return leaves;
}

std::optional<GalvatronPlan> galvatron_layers(const GalvatronProblem& problem) {
  const auto strategies = static_cast<int>(problem.strategies.size());
  const auto budget = static_cast<int>(std::floor(problem.memory_bytes / problem.unit_bytes + 1e-9));
  if (budget < 0 || strategies == 0) return std::nullopt;
  const auto width = static_cast<std::size_t>(budget) + 1;
  const auto row = [&](int strategy) { return static_cast<std::size_t>(strategy) * width; };
  // best[s, m]: the layers so far in at most m units, the last one with strategy s.
  std::vector<double> best(static_cast<std::size_t>(strategies) * width, 0), next(best.size());
  std::vector<std::vector<std::int16_t>> from(static_cast<std::size_t>(problem.layers),
                                              std::vector<std::int16_t>(best.size(), -1));
  std::vector<std::vector<int>> units(static_cast<std::size_t>(problem.layers));
  std::vector<double> change(static_cast<std::size_t>(strategies));
  for (int layer = 0; layer < problem.layers; ++layer) {
    auto& chosen = from[static_cast<std::size_t>(layer)];
    for (int s = 0; s < strategies; ++s) {
      const LayerCost cost = problem.cost(layer, s);
      const int need = units_of(problem, cost.bytes);
      units[static_cast<std::size_t>(layer)].push_back(need);
      double* out = next.data() + row(s);
      std::int16_t* mark = chosen.data() + row(s);
      std::fill(out, out + width, kTooMuch);
      for (int last = 0; last < (layer == 0 ? 1 : strategies); ++last) {
        const double seconds = cost.seconds + (layer == 0 ? 0 : problem.transformation(layer, last, s));
        const double* in = best.data() + row(last);
        for (int m = need; m <= budget; ++m) {
          const double sum = in[m - need] + seconds;
          if (sum < out[m]) out[m] = sum, mark[m] = static_cast<std::int16_t>(last);
        }
      }
    }
    std::swap(best, next);
  }
  GalvatronPlan plan{.seconds = kTooMuch};
  int last = -1;
  for (int s = 0; s < strategies; ++s) {
    if (best[row(s) + width - 1] < plan.seconds) plan.seconds = best[row(s) + width - 1], last = s;
  }
  if (last < 0) return std::nullopt;
  plan.strategies.assign(static_cast<std::size_t>(problem.layers), 0);
  for (int layer = problem.layers - 1, left = budget; layer >= 0; --layer) {
    const auto at = static_cast<std::size_t>(layer);
    plan.strategies[at] = last;
    plan.bytes += problem.cost(layer, last).bytes;
    const int before = from[at][row(last) + static_cast<std::size_t>(left)];
    left -= units[at][static_cast<std::size_t>(last)];
    last = before;
  }
  return plan;
}

std::optional<GalvatronPlan> brute_force_layers(const GalvatronProblem& problem) {
  std::optional<GalvatronPlan> best;
  std::vector<int> tried(static_cast<std::size_t>(problem.layers), 0);
  const auto budget = static_cast<int>(std::floor(problem.memory_bytes / problem.unit_bytes + 1e-9));
  while (true) {
    GalvatronPlan plan{.strategies = tried};
    int units = 0;
    for (int layer = 0; layer < problem.layers; ++layer) {
      const int s = tried[static_cast<std::size_t>(layer)];
      const LayerCost cost = problem.cost(layer, s);
      plan.seconds += cost.seconds;
      plan.bytes += cost.bytes;
      units += units_of(problem, cost.bytes);
      if (layer > 0) plan.seconds += problem.transformation(layer, tried[static_cast<std::size_t>(layer) - 1], s);
    }
    if (units <= budget && (!best || plan.seconds < best->seconds)) best = plan;
    std::size_t i = tried.size();
    while (i > 0 && ++tried[i - 1] == static_cast<int>(problem.strategies.size())) tried[--i] = 0;
    if (i == 0) return best;
  }
}

}  // namespace trireme::plan::graph
