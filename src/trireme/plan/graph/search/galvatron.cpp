#include "trireme/plan/graph/search/galvatron.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

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

namespace {

/// A problem's functions as tables.
struct LayerTables {
  std::size_t layers = 0, strategies = 0;
  std::vector<double> seconds, bytes;  // [layer, strategy]
  std::vector<int> units;
  std::vector<double> change;  // [layer, from, to]

  explicit LayerTables(const GalvatronProblem& problem)
      : layers(static_cast<std::size_t>(problem.layers)), strategies(problem.strategies.size()) {
    for (int layer = 0; layer < problem.layers; ++layer) {
      for (std::size_t s = 0; s < strategies; ++s) {
        const LayerCost cost = problem.cost(layer, static_cast<int>(s));
        seconds.push_back(cost.seconds);
        bytes.push_back(cost.bytes);
        units.push_back(units_of(problem, cost.bytes));
      }
      for (std::size_t pair = 0; pair < strategies * strategies; ++pair)
        change.push_back(layer == 0 ? 0
                                    : problem.transformation(layer, static_cast<int>(pair / strategies),
                                                             static_cast<int>(pair % strategies)));
    }
  }
  std::size_t at(std::size_t layer, std::size_t s) const { return layer * strategies + s; }
  double change_of(std::size_t layer, std::size_t from, std::size_t to) const {
    return change[at(layer, from) * strategies + to];
  }
  std::span<const int> units_of_layer(std::size_t layer) const {
    return std::span(units).subspan(layer * strategies, strategies);
  }
  GalvatronPlan plan_of(std::vector<int> chosen, double total) const {
    GalvatronPlan plan{.strategies = std::move(chosen), .seconds = total};
    for (std::size_t layer = 0; layer < layers; ++layer)
      plan.bytes += bytes[at(layer, static_cast<std::size_t>(plan.strategies[layer]))];
    return plan;
  }
};

/// The fastest whatever memory it takes; nothing where that is too much. Where it fits, the search under the budget
/// would find the same: fewer choices cannot be better, and of equal ones it takes the same.
std::optional<GalvatronPlan> fastest_of_all(const LayerTables& tables, std::int64_t budget) {
  const std::size_t strategies = tables.strategies;
  std::vector<double> best(strategies, 0), next(strategies);
  std::vector<std::size_t> from(tables.layers * strategies, 0);
  for (std::size_t layer = 0; layer < tables.layers; ++layer) {
    for (std::size_t s = 0; s < strategies; ++s) {
      next[s] = kTooMuch;
      for (std::size_t last = 0; last < (layer == 0 ? 1 : strategies); ++last) {
        const double sum = best[last] + (tables.seconds[tables.at(layer, s)] + tables.change_of(layer, last, s));
        if (sum < next[s]) next[s] = sum, from[tables.at(layer, s)] = last;
      }
    }
    std::swap(best, next);
  }
  std::size_t last = static_cast<std::size_t>(std::ranges::min_element(best) - best.begin());
  const double total = best[last];
  std::vector<int> chosen(tables.layers);
  std::int64_t used = 0;
  for (std::size_t layer = tables.layers; layer-- > 0;) {
    chosen[layer] = static_cast<int>(last);
    used += tables.units[tables.at(layer, last)];
    last = from[tables.at(layer, last)];
  }
  if (used > budget || !(total < kTooMuch)) return std::nullopt;
  return tables.plan_of(std::move(chosen), total);
}

/// Strategies before a layer that cost the same to change from, whatever comes: [class] strategies, ascending.
std::vector<std::vector<std::size_t>> alike_before(const LayerTables& tables, std::size_t layer) {
  std::vector<std::vector<std::size_t>> classes;
  const auto row = [&](std::size_t from) {
    return std::span(tables.change).subspan(tables.at(layer, from) * tables.strategies, tables.strategies);
  };
  for (std::size_t from = 0; from < tables.strategies; ++from) {
    const auto same = std::ranges::find_if(
        classes, [&](const auto& members) { return std::ranges::equal(row(members.front()), row(from)); });
    if (same == classes.end())
      classes.push_back({from});
    else
      same->push_back(from);
  }
  return classes;
}

}  // namespace

std::optional<GalvatronPlan> galvatron_layers(const GalvatronProblem& problem) {
  const auto budget = static_cast<std::int64_t>(std::floor(problem.memory_bytes / problem.unit_bytes + 1e-9));
  if (budget < 0 || problem.strategies.empty()) return std::nullopt;
  const LayerTables tables(problem);
  if (auto fastest = fastest_of_all(tables, budget)) return fastest;
  const std::size_t strategies = tables.strategies;
  // Only units that matter: at least what the layers so far must have, at most what they can have, and so many that the
  // layers to come have what they must have.
  std::int64_t must = 0, low = 0, most = 0;
  for (std::size_t layer = 0; layer < tables.layers; ++layer) must += std::ranges::min(tables.units_of_layer(layer));
  if (must > budget) return std::nullopt;
  struct Row {
    std::int64_t low = 0, high = 0;
    std::vector<std::int16_t> from = {};  // [strategy, units from low on]: of the layer before; -1: none
    std::size_t width() const { return static_cast<std::size_t>(high - low) + 1; }
  };
  std::vector<Row> rows;
  std::vector<double> best, next;  // [strategy, units]: the layers so far in at most so many
  for (std::size_t layer = 0; layer < tables.layers; ++layer) {
    const std::int64_t least = std::ranges::min(tables.units_of_layer(layer));
    must -= least, low += least, most += std::ranges::max(tables.units_of_layer(layer));
    Row row{.low = low, .high = std::min(budget - must, most)};
    row.from.assign(strategies * row.width(), -1);
    next.assign(strategies * row.width(), kTooMuch);
    const Row* const before = layer == 0 ? nullptr : &rows.back();
    std::vector<std::vector<std::size_t>> classes;
    std::vector<double> best_of;      // [class, units before]
    std::vector<std::int16_t> which;  // of its strategies
    if (before != nullptr) {
      classes = alike_before(tables, layer);
      best_of.assign(classes.size() * before->width(), kTooMuch);
      which.assign(best_of.size(), -1);
      for (std::size_t c = 0; c < classes.size(); ++c) {
        for (const std::size_t member : classes[c]) {
          for (std::size_t i = 0; i < before->width(); ++i) {
            const double one = best[member * before->width() + i];
            if (one < best_of[c * before->width() + i])
              best_of[c * before->width() + i] = one,
                                            which[c * before->width() + i] = static_cast<std::int16_t>(member);
          }
        }
      }
    }
    for (std::size_t s = 0; s < strategies; ++s) {
      const std::int64_t need = tables.units[tables.at(layer, s)];
      double* const out = next.data() + s * row.width();
      std::int16_t* const mark = row.from.data() + s * row.width();
      if (before == nullptr) {
        for (std::int64_t m = std::max(need, row.low); m <= row.high; ++m)
          out[m - row.low] = tables.seconds[tables.at(layer, s)], mark[m - row.low] = 0;
        continue;
      }
      for (std::size_t c = 0; c < classes.size(); ++c) {
        const double seconds = tables.seconds[tables.at(layer, s)] + tables.change_of(layer, classes[c].front(), s);
        const double* const in = best_of.data() + c * before->width();
        const std::int16_t* const of = which.data() + c * before->width();
        const auto take = [&](std::int64_t m, std::int64_t left) {
          const double sum = in[left - before->low] + seconds;
          const std::int16_t last = of[left - before->low];
          if (sum < out[m - row.low] || (sum == out[m - row.low] && sum < kTooMuch && last < mark[m - row.low]))
            out[m - row.low] = sum, mark[m - row.low] = last;
        };
        std::int64_t m = std::max(row.low, before->low + need);
        for (; m <= std::min(row.high, before->high + need); ++m) take(m, m - need);
        for (; m <= row.high; ++m) take(m, before->high);  // the layers before have all that they can have
      }
    }
    std::swap(best, next);
    rows.push_back(std::move(row));
  }
  const std::size_t width = rows.back().width();
  std::int64_t last = -1;
  double total = kTooMuch;
  for (std::size_t s = 0; s < strategies; ++s) {
    if (best[s * width + width - 1] < total) total = best[s * width + width - 1], last = static_cast<std::int64_t>(s);
  }
  if (last < 0) return std::nullopt;
  std::vector<int> chosen(tables.layers);
  std::int64_t left = budget;
  for (std::size_t layer = tables.layers; layer-- > 0;) {
    const Row& row = rows[layer];
    const auto s = static_cast<std::size_t>(last);
    chosen[layer] = static_cast<int>(s);
    last = row.from[s * row.width() + static_cast<std::size_t>(std::min(left, row.high) - row.low)];
    left -= tables.units[tables.at(layer, s)];
  }
  return tables.plan_of(std::move(chosen), total);
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
