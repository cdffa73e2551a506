#include "trireme/plan/graph/search/inter_op.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace trireme::plan::graph {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

bool stage_fits(const StageTable& table, const StageCost& cost, int from_end) {
  return table.memory_bytes <= 0 || cost.fixed_bytes + from_end * cost.activation_bytes <= table.memory_bytes;
}

double step_seconds(const StageTable& table, double sum, double slowest) { return sum + (table.micros - 1) * slowest; }

/// All costs, looked up once.
class StageCosts {
 public:
  explicit StageCosts(const StageTable& table) : layers_(table.layers), submeshes_(int(table.submeshes.size())) {
    costs_.resize(static_cast<std::size_t>(layers_) * static_cast<std::size_t>(layers_ + 1) *
                  static_cast<std::size_t>(submeshes_));
    for (int begin = 0; begin < layers_; ++begin) {
      for (int end = begin + 1; end <= layers_; ++end) {
        for (int m = 0; m < submeshes_; ++m) costs_[index(begin, end, m)] = table.cost(begin, end, m);
      }
    }
  }
  const std::optional<StageCost>& at(int begin, int end, int submesh) const {
    return costs_[index(begin, end, submesh)];
  }
  /// Every stage time once, ascending; those within a step of each other count as one.
  std::vector<double> bounds(double step) const {
    std::set<double> all;
    for (const auto& cost : costs_) {
      if (cost) all.insert(cost->seconds);
    }
    std::vector<double> result;
    for (const double seconds : all) {
      if (!result.empty() && seconds - result.back() < step) {
        result.back() = seconds;
      } else {
        result.push_back(seconds);
      }
    }
    return result;
  }

 private:
  std::size_t index(int begin, int end, int submesh) const {
    return (static_cast<std::size_t>(begin) * static_cast<std::size_t>(layers_ + 1) + static_cast<std::size_t>(end)) *
               static_cast<std::size_t>(submeshes_) +
           static_cast<std::size_t>(submesh);
  }
  int layers_, submeshes_;
  std::vector<std::optional<StageCost>> costs_;
};

/// F(s, k, d) for one bound: the least sum of stage times of layers k.. in s stages on d devices.
class BoundedProgram {
 public:
  BoundedProgram(const StageTable& table, const StageCosts& costs) : table_(table), costs_(costs) {
    layers_ = table.layers;
    devices_ = table.nodes * table.per_node;
    best_.resize(static_cast<std::size_t>(layers_ + 1) * static_cast<std::size_t>(layers_ + 1) *
                 static_cast<std::size_t>(devices_ + 1));
  }

  std::optional<Pipeline> run(double bound) {
    std::ranges::fill(best_, Entry{});
    at(0, layers_, 0).sum = 0;
    for (int s = 1; s <= layers_; ++s) {
      for (int k = layers_ - 1; k >= 0; --k) {
        for (int d = 1; d <= devices_; ++d) relax(s, k, d, bound);
      }
    }
    int stages = 0;
    for (int s = 1; s <= layers_; ++s) {
      if (at(s, 0, devices_).sum < (stages ? at(stages, 0, devices_).sum : kNever)) stages = s;
    }
    if (stages == 0) return std::nullopt;
    Pipeline pipeline;
    double slowest = 0;
    for (int s = stages, k = 0, d = devices_; s > 0; --s) {
      const Entry entry = at(s, k, d);
      const double seconds = costs_.at(k, entry.end, entry.submesh)->seconds;
      pipeline.stages.push_back({k, entry.end, entry.submesh, seconds});
      slowest = std::max(slowest, seconds);
      k = entry.end;
      d -= table_.submeshes[static_cast<std::size_t>(entry.submesh)].devices();
    }
    pipeline.seconds = step_seconds(table_, at(stages, 0, devices_).sum, slowest);
    return pipeline;
  }

 private:
  struct Entry {
    double sum = kNever;
    int end = -1, submesh = -1;
  };
  Entry& at(int s, int k, int d) {
    return best_[(static_cast<std::size_t>(s) * static_cast<std::size_t>(layers_ + 1) + static_cast<std::size_t>(k)) *
                     static_cast<std::size_t>(devices_ + 1) +
                 static_cast<std::size_t>(d)];
  }
  void relax(int s, int k, int d, double bound) {
    Entry& entry = at(s, k, d);
    for (int end = k + 1; end <= layers_; ++end) {
      for (std::size_t m = 0; m < table_.submeshes.size(); ++m) {
        const int left = d - table_.submeshes[m].devices();
        if (left < 0) continue;
        const Entry& rest = at(s - 1, end, left);
        if (rest.sum == kNever) continue;
        const auto& cost = costs_.at(k, end, static_cast<int>(m));
        if (!cost || cost->seconds > bound || !stage_fits(table_, *cost, s)) continue;
        if (cost->seconds + rest.sum < entry.sum) entry = {cost->seconds + rest.sum, end, static_cast<int>(m)};
      }
    }
  }

  const StageTable& table_;
  const StageCosts& costs_;
  int layers_ = 0, devices_ = 0;
  std::vector<Entry> best_;  // [stages][first layer][devices]
};

void enumerate_stages(const StageTable& table, int begin, int devices, std::vector<PipelineStage>& stages,
                      std::optional<Pipeline>& best) {
  if (begin == table.layers) {
    if (devices != 0) return;
    double sum = 0, slowest = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto cost = table.cost(stages[i].begin, stages[i].end, stages[i].submesh);
      if (!stage_fits(table, *cost, static_cast<int>(stages.size() - i))) return;
      sum += cost->seconds;
      slowest = std::max(slowest, cost->seconds);
    }
    const double seconds = step_seconds(table, sum, slowest);
    if (!best || seconds < best->seconds) best = Pipeline{stages, seconds};
    return;
  }
  for (int end = begin + 1; end <= table.layers; ++end) {
    for (std::size_t m = 0; m < table.submeshes.size(); ++m) {
      const auto cost = table.cost(begin, end, static_cast<int>(m));
      const int left = devices - table.submeshes[m].devices();
      if (!cost || left < 0) continue;
      stages.push_back({begin, end, static_cast<int>(m), cost->seconds});
      enumerate_stages(table, end, left, stages, best);
      stages.pop_back();
    }
  }
}

}  // namespace

std::vector<Submesh> submeshes_of(int nodes, int per_node) {
  std::vector<Submesh> result;
  for (int devices = 1; devices < per_node; devices *= 2) result.push_back({1, devices});
  for (int n = 1; n <= nodes; ++n) result.push_back({n, per_node});
  return result;
}

std::optional<Pipeline> alpa_stages(const StageTable& table, double step) {
  const StageCosts costs(table);
  BoundedProgram program(table, costs);
  std::optional<Pipeline> best;
  for (const double bound : costs.bounds(step)) {
    // No pipeline under this bound or a later one beats the best: its slowest stage alone is too slow.
    if (best && table.micros * bound >= best->seconds) break;
    std::optional<Pipeline> found = program.run(bound);
    if (found && (!best || found->seconds < best->seconds)) best = std::move(found);
  }
  return best;
}

std::optional<Pipeline> brute_force_stages(const StageTable& table) {
  std::optional<Pipeline> best;
  std::vector<PipelineStage> stages;
  enumerate_stages(table, 0, table.nodes * table.per_node, stages, best);
  return best;
}

PipeDreamPlan pipedream_stages(const std::vector<PipeDreamLayer>& layers, const std::vector<NetworkLevel>& levels) {
  const auto n = static_cast<int>(layers.size());
  const auto at = [n](int i, int j) {
    return static_cast<std::size_t>(i) * static_cast<std::size_t>(n) + std::size_t(j);
  };
  // below[i, j]: the slowest stage of layers i..j on one whole machine of the level below; at first one device.
  std::vector<double> below(static_cast<std::size_t>(n) * static_cast<std::size_t>(n), 0);
  std::vector<double> weights(below.size(), 0);
  for (int i = 0; i < n; ++i) {
    for (int j = i; j < n; ++j) {
      const auto last = static_cast<std::size_t>(j);
      below[at(i, j)] = (j > i ? below[at(i, j - 1)] : 0) + layers[last].seconds;
      weights[at(i, j)] = (j > i ? weights[at(i, j - 1)] : 0) + layers[last].weight_bytes;
    }
  }
  struct Choice {
    int cut = -1, machines = 0;  // the last stage begins after `cut`, on so many machines; -1: a single stage
  };
  std::vector<std::vector<double>> best;  // [machines][i, j] of the level at hand
  std::vector<std::vector<Choice>> choice;
  for (const NetworkLevel& level : levels) {
    best.assign(static_cast<std::size_t>(level.width) + 1, std::vector<double>(below.size(), kNever));
    choice.assign(static_cast<std::size_t>(level.width) + 1, std::vector<Choice>(below.size()));
    // One stage over m machines: its share of samples each, or the all-reduce of its weights, whichever is longer.
    const auto single = [&](int i, int j, int m) {
      const double sync = 2.0 * (m - 1) * weights[at(i, j)] / level.bytes_per_second;
      return std::max(below[at(i, j)], sync) / m;
    };
    for (int m = 1; m <= level.width; ++m) {
      for (int i = 0; i < n; ++i) {
        for (int j = i; j < n; ++j) {
          double& value = best[static_cast<std::size_t>(m)][at(i, j)];
          Choice& chosen = choice[static_cast<std::size_t>(m)][at(i, j)];
          value = single(i, j, m);
          chosen = {-1, m};
          for (int s = i; s < j; ++s) {
            const double message = 2 * layers[static_cast<std::size_t>(s)].output_bytes / level.bytes_per_second;
            for (int last = 1; last < m; ++last) {
              const double time =
                  std::max({best[static_cast<std::size_t>(m - last)][at(i, s)], message, single(s + 1, j, last)});
              if (time < value) value = time, chosen = {s, last};
            }
          }
        }
      }
    }
    below = best[static_cast<std::size_t>(level.width)];
  }
  PipeDreamPlan plan{.stages = {}, .seconds = n > 0 ? below[at(0, n - 1)] : 0};
  for (int j = n - 1, m = levels.empty() ? 0 : levels.back().width; j >= 0 && m > 0;) {
    const Choice& chosen = choice[static_cast<std::size_t>(m)][at(0, j)];
    plan.stages.insert(plan.stages.begin(), {chosen.cut + 1, j + 1, chosen.machines});
    j = chosen.cut;
    m -= chosen.machines;
  }
  return plan;
}

}  // namespace trireme::plan::graph
