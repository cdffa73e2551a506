#include "trireme/plan/graph/search/pipelines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/search/chain.h"
#include "trireme/plan/graph/search/galvatron.h"
#include "trireme/plan/graph/search/inter_op.h"
#include "trireme/plan/graph/search/rannc.h"

namespace trireme::plan::graph {
namespace {

constexpr int kMostMicros = 32;
constexpr int kAlpaLayers = 16, kRanncBlocks = 32;
constexpr double kRanncMargin = 0.1;
constexpr double kStates = 4;  // weight, gradient, two moments

/// Powers of two that the batch divides into, so that `devices` can share a micro-batch's samples; 1 at least.
std::vector<int> micro_counts(const Graph& both, int devices = 1) {
  const Index batch = both.size(sample_dim(both));
  std::vector<int> counts{1};
  for (int micros = 2; micros <= kMostMicros && batch % (micros * devices) == 0; micros *= 2) counts.push_back(micros);
  return counts;
}

/// Into how many parts some operator splits samples.
int sample_degree(const Graph& both, const Strategy& strategy) {
  const int samples = sample_dim(both);
  int most = 1;
  for (const Split& split : strategy.splits) {
    int degree = 1;
    for (std::size_t axis = 0; axis < split.size(); ++axis)
      degree *= split[axis] == samples ? strategy.mesh.axes()[axis].size : 1;
    most = std::max(most, degree);
  }
  return most;
}

StagePlan stage_of_layers(const std::vector<ChainLayer>& chain, int begin, int end, Strategy strategy) {
  StagePlan stage{.ops = {}, .strategy = std::move(strategy)};
  for (int i = begin; i < end; ++i) {
    const auto& ops = chain[static_cast<std::size_t>(i)].ops;
    stage.ops.insert(stage.ops.end(), ops.begin(), ops.end());
  }
  std::ranges::sort(stage.ops);
  return stage;
}

StagedPlan runnable(const Graph& both, StagedPlan plan) { return made_legal(without_backward(both), std::move(plan)); }

Pricing on_devices(const Pricing& pricing, int devices) {
  return Pricing(pricing.hardware(), factored_mesh(devices), pricing.arithmetic(), pricing.profile());
}

double message(const Pricing& pricing, double bytes) {
  const bool several = pricing.mesh().ranks() > pricing.hardware().cluster.gpus_per_node;
  return bytes > 0 ? cost::message_seconds(pricing.hardware(), bytes, several) : 0;
}

double all_reduce_seconds(const Pricing& pricing, int devices, double bytes) {
  if (devices == 1 || bytes <= 0) return 0;
  const int per_node = std::min(devices, std::max(1, pricing.hardware().cluster.gpus_per_node));
  return cost::group_seconds(pricing.hardware(), cost::Collective::kAllReduce,
                             {.ranks = devices, .per_node = per_node, .groups = 1, .extent = double(devices)}, bytes);
}

Found none_fits(const std::string& method, const Graph& both, const Pricing& pricing) {
  Found found{.method = method, .strategy = replicated(both, pricing.mesh()), .cost = {}};
  found.fits = false;
  found.pipeline = "nothing fits into memory\n";
  found.note = "nothing fits into memory";
  return found;
}

/// Seconds and bytes of forward operators under a strategy on some devices.
struct OpTotals {
  std::vector<double> seconds, weight_bytes, activation_bytes;
};
OpTotals totals_of(const Graph& both, const Pricing& pricing, const Strategy& strategy) {
  OpTotals totals{.seconds = seconds_by_op(both, pricing, strategy), .weight_bytes = {}, .activation_bytes = {}};
  const Lowering lowering = lower(both, strategy);
  for (std::size_t i = 0; i < strategy.splits.size(); ++i) {
    const Op& op = both.ops[i];
    double weights = 0, activations = 0;
    for (const int input : op.inputs) {
      if (both.tensor(input).role == Role::kParameter) weights += lowering.tensor_bytes[std::size_t(input)];
    }
    for (const int output : op.outputs) {
      if (op.kind != OpKind::kReshape) activations += lowering.tensor_bytes[static_cast<std::size_t>(output)];
    }
    totals.weight_bytes.push_back(weights);
    totals.activation_bytes.push_back(activations);
  }
  return totals;
}

/// Sums over the operators of layers, for runs of layers.
std::vector<double> prefix_sums(const std::vector<ChainLayer>& chain, const std::vector<double>& by_op) {
  std::vector<double> sums{0};
  for (const ChainLayer& layer : chain) {
    double sum = 0;
    for (const int op : layer.ops) sum += by_op[static_cast<std::size_t>(op)];
    sums.push_back(sums.back() + sum);
  }
  return sums;
}

std::string stage_line(const std::vector<ChainLayer>& chain, int begin, int end, const std::string& where,
                       double seconds) {
  const ChainLayer &first = chain[static_cast<std::size_t>(begin)], &last = chain[static_cast<std::size_t>(end) - 1];
  return fmt::format("stage {} .. {} on {}: {:.4g} ms a micro-batch\n", first.name, last.name, where, 1e3 * seconds);
}

}  // namespace

Found search_alpa_stages(const Graph& both, const Pricing& pricing, const SearchLimits& limits) {
  const int devices = pricing.mesh().ranks();
  const int per_node = std::min(devices, std::max(1, pricing.hardware().cluster.gpus_per_node));
  const int nodes = std::max(1, devices / per_node);
  const std::vector<ChainLayer> chain = cluster_layers(chain_of(both, on_devices(pricing, 1)), kAlpaLayers);
  int micros = 1;
  const Index batch = both.size(sample_dim(both));
  StageTable table{.layers = static_cast<int>(chain.size()),
                   .nodes = nodes,
                   .per_node = per_node,
                   .submeshes = submeshes_of(nodes, per_node),
                   .micros = micros,
                   .memory_bytes = limits.memory_bytes,
                   .cost = {}};
  struct Plan {
    std::vector<double> seconds, weights, activations;  // sums before each layer
    Strategy strategy;
    int samples = 1;  // parts of them
  };
  std::map<int, Plan> plans;  // [devices]
  for (const Submesh& submesh : table.submeshes) {
    if (plans.contains(submesh.devices())) continue;
    const Pricing part = on_devices(pricing, submesh.devices());
    const GraphProblem problem = make_problem(both, part, {.canonical = true, .reduced = true});
    Strategy strategy = problem.strategy_of(both, eliminate(problem.problem).assignment);
    const OpTotals totals = totals_of(both, part, strategy);
    const int samples = sample_degree(both, strategy);
    plans[submesh.devices()] = {prefix_sums(chain, totals.seconds), prefix_sums(chain, totals.weight_bytes),
                                prefix_sums(chain, totals.activation_bytes), std::move(strategy), samples};
  }
  table.cost = [&](int begin, int end, int submesh) -> std::optional<StageCost> {
    const Plan& plan = plans.at(table.submeshes[static_cast<std::size_t>(submesh)].devices());
    if (micros > 1 && batch % (Index{micros} * plan.samples) != 0) return std::nullopt;
    const auto between = [&](const std::vector<double>& sums) {
      return sums[static_cast<std::size_t>(end)] - sums[static_cast<std::size_t>(begin)];
    };
    const double cut = end < table.layers ? chain[static_cast<std::size_t>(end) - 1].cut_bytes : 0;
    const int parts = table.submeshes[static_cast<std::size_t>(submesh)].devices();
    return StageCost{.seconds = between(plan.seconds) / micros + 2 * message(pricing, cut / micros / parts),
                     .fixed_bytes = kStates * between(plan.weights),
                     .activation_bytes = between(plan.activations) / micros};
  };
  std::optional<Pipeline> best;
  int best_micros = 1;
  for (const int count : micro_counts(both)) {
    micros = table.micros = count;
    std::optional<Pipeline> next = alpa_stages(table, 1e-6);
    if (!next || (best && next->seconds >= best->seconds)) continue;
    best = std::move(next);
    best_micros = count;
  }
  if (!best) return none_fits("alpa", both, pricing);
  micros = best_micros;
  StagedPlan plan{.micros = micros, .stages = {}};
  Found found{.method = "alpa", .strategy = replicated(both, pricing.mesh()), .cost = {}};
  found.pipeline =
      fmt::format("pipeline {} of {}, {} micro-batches\n", both.name, counted(best->stages.size(), "stage"), micros);
  for (std::size_t i = 0; i < best->stages.size(); ++i) {
    const PipelineStage& stage = best->stages[i];
    const Submesh& on = table.submeshes[static_cast<std::size_t>(stage.submesh)];
    found.pipeline +=
        stage_line(chain, stage.begin, stage.end, fmt::format("{} x {}", on.nodes, on.per_node), stage.seconds);
    const StageCost cost = *table.cost(stage.begin, stage.end, stage.submesh);
    found.cost.memory_bytes =
        std::max(found.cost.memory_bytes,
                 cost.fixed_bytes + static_cast<double>(best->stages.size() - i) * cost.activation_bytes);
    found.cost.compute_seconds = std::max(found.cost.compute_seconds, micros * stage.seconds);
    plan.stages.push_back(stage_of_layers(chain, stage.begin, stage.end, plans.at(on.devices()).strategy));
  }
  found.plan = runnable(both, std::move(plan));
  found.cost.seconds = best->seconds;
  found.cost.communication_seconds = found.cost.seconds - found.cost.compute_seconds;
  found.bound = best->seconds;
  found.note =
      fmt::format("{} of {} layers, {} micro-batches", counted(best->stages.size(), "stage"), chain.size(), micros);
  return found;
}

namespace {

/// One past the last of each of `runs` runs of consecutive layers, the slowest as fast as can be. Of equals the
/// earliest cuts.
std::vector<int> balanced_ends(const std::vector<double>& seconds, int runs) {
  const auto n = static_cast<int>(seconds.size());
  std::vector<double> before{0};
  for (const double one : seconds) before.push_back(before.back() + one);
  // slowest[r][k]: the slowest of r runs of the first k layers; from[r][k]: where the last of them begins.
  std::vector<std::vector<double>> slowest(
      static_cast<std::size_t>(runs) + 1,
      std::vector<double>(static_cast<std::size_t>(n) + 1, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<int>> from(slowest.size(), std::vector<int>(static_cast<std::size_t>(n) + 1, 0));
  slowest[0][0] = 0;
  for (std::size_t r = 1; r < slowest.size(); ++r) {
    for (std::size_t k = r; k <= static_cast<std::size_t>(n); ++k) {
      for (std::size_t j = r - 1; j < k; ++j) {
        const double worst = std::max(slowest[r - 1][j], before[k] - before[j]);
        if (worst < slowest[r][k]) slowest[r][k] = worst, from[r][k] = static_cast<int>(j);
      }
    }
  }
  std::vector<int> ends(static_cast<std::size_t>(runs));
  int end = n;
  for (std::size_t r = ends.size(); r > 0; --r) {
    ends[r - 1] = end;
    end = from[r][static_cast<std::size_t>(end)];
  }
  return ends;
}

}  // namespace

Found search_torchgpipe(const Graph& both, const Pricing& pricing, const SearchLimits& limits) {
  const std::vector<ChainLayer> chain = chain_of(both, on_devices(pricing, 1));
  const int stages = std::min(pricing.mesh().ranks(), static_cast<int>(chain.size()));
  std::vector<double> seconds;
  for (const ChainLayer& layer : chain) seconds.push_back(2 * layer.forward + layer.backward);
  const std::vector<int> ends = balanced_ends(seconds, stages);
  const auto slowest_with = [&](int micros) {
    double slowest = 0;
    for (std::size_t s = 0, layer = 0; s < ends.size(); ++s) {
      double stage = 0;
      for (; layer < static_cast<std::size_t>(ends[s]); ++layer) stage += seconds[layer] / micros;
      const double cut = s + 1 < ends.size() ? chain[layer - 1].cut_bytes : 0;
      slowest = std::max(slowest, stage + 2 * message(pricing, cut / micros));
    }
    return slowest;
  };
  StagedPlan plan{.micros = 1, .schedule = "gpipe", .stages = {}};
  Found found{.method = "torchgpipe", .strategy = replicated(both, pricing.mesh()), .cost = {}};
  found.cost.seconds = std::numeric_limits<double>::infinity();
  for (const int count : micro_counts(both)) {
    const double step = (count + stages - 1) * slowest_with(count);  // filling and emptying included
    if (step < found.cost.seconds) found.cost.seconds = step, plan.micros = count;
  }
  found.pipeline = fmt::format("pipeline {} of {}, {} micro-batches, gpipe\n", both.name,
                               counted(static_cast<std::size_t>(stages), "stage"), plan.micros);
  int begin = 0;
  for (const int end : ends) {
    double weights = 0, saved = begin > 0 ? chain[static_cast<std::size_t>(begin) - 1].cut_bytes : 0, stage = 0;
    double activations = 0;
    for (int i = begin; i < end; ++i) {
      weights += chain[static_cast<std::size_t>(i)].weight_bytes;
      activations += chain[static_cast<std::size_t>(i)].activation_bytes;
      stage += seconds[static_cast<std::size_t>(i)];
    }
    // Of every micro-batch what came in, of one what is recomputed.
    found.cost.memory_bytes = std::max(found.cost.memory_bytes, kStates * weights + saved + activations / plan.micros);
    found.cost.compute_seconds = std::max(found.cost.compute_seconds, stage);
    found.pipeline += stage_line(chain, begin, end, "1 device", stage / plan.micros);
    StagePlan next = stage_of_layers(chain, begin, end, replicated(both, factored_mesh(1)));
    next.strategy.checkpoints = {next.ops};
    plan.stages.push_back(std::move(next));
    begin = end;
  }
  found.cost.communication_seconds = found.cost.seconds - found.cost.compute_seconds;
  found.fits = limits.memory_bytes <= 0 || found.cost.memory_bytes <= limits.memory_bytes;
  found.note = fmt::format("{} of {} layers, {} micro-batches, recomputed",
                           counted(static_cast<std::size_t>(stages), "stage"), chain.size(), plan.micros);
  found.plan = runnable(both, std::move(plan));
  return found;
}

Found search_pipedream(const Graph& both, const Pricing& pricing, const SearchLimits& limits) {
  const int devices = pricing.mesh().ranks();
  const auto& cluster = pricing.hardware().cluster;
  const int per_node = std::min(devices, std::max(1, cluster.gpus_per_node)), nodes = std::max(1, devices / per_node);
  const std::vector<ChainLayer> chain = chain_of(both, on_devices(pricing, 1));
  std::vector<PipeDreamLayer> layers;
  for (const ChainLayer& layer : chain)
    layers.push_back({layer.forward + layer.backward, layer.cut_bytes, layer.weight_bytes});
  const double inside = 1 / std::max(1e-15, cost::message_seconds(pricing.hardware(), 1e9, false) / 1e9),
               across = 1 / std::max(1e-15, cost::message_seconds(pricing.hardware(), 1e9, true) / 1e9);
  std::vector<NetworkLevel> levels{{per_node, inside}};
  if (nodes > 1) levels.push_back({nodes, across});
  const PipeDreamPlan plan = pipedream_stages(layers, levels);
  Found found{.method = "pipedream", .strategy = replicated(both, pricing.mesh()), .cost = {}};
  found.cost.seconds = found.cost.compute_seconds = plan.seconds;
  found.pipeline = fmt::format("pipeline {} of {}, asynchronous\n", both.name, counted(plan.stages.size(), "stage"));
  const int per_machine = nodes > 1 ? per_node : 1;
  StagedPlan staged{.micros = 1, .stages = {}};
  const Index batch = both.size(sample_dim(both));
  for (const int count : micro_counts(both)) {
    const bool divides = std::ranges::all_of(plan.stages, [&](const PipeDreamStage& stage) {
      return batch % (Index{count} * stage.machines * per_machine) == 0;
    });
    if (divides) staged.micros = count;
  }
  int later = levels.back().width;  // machines of this stage and those after it
  for (const PipeDreamStage& stage : plan.stages) {
    double weights = 0, activations = 0, seconds = 0;
    for (int i = stage.begin; i < stage.end; ++i) {
      weights += chain[static_cast<std::size_t>(i)].weight_bytes;
      activations += chain[static_cast<std::size_t>(i)].activation_bytes;
      seconds += layers[static_cast<std::size_t>(i)].seconds / stage.machines;
    }
    // A minibatch is a device's share of the batch; of each in flight there are its activations and its weights.
    const double in_flight = std::ceil(static_cast<double>(later) / stage.machines);
    found.cost.memory_bytes =
        std::max(found.cost.memory_bytes, weights * (kStates - 1 + in_flight) + in_flight * activations / devices);
    found.pipeline +=
        stage_line(chain, stage.begin, stage.end,
                   counted(static_cast<std::size_t>(stage.machines), nodes > 1 ? "node" : "device"), seconds);
    later -= stage.machines;
    staged.stages.push_back(stage_of_layers(chain, stage.begin, stage.end,
                                            data_parallel(both, factored_mesh(stage.machines * per_machine))));
  }
  found.plan = runnable(both, std::move(staged));
  found.fits = limits.memory_bytes <= 0 || found.cost.memory_bytes <= limits.memory_bytes;
  found.note =
      fmt::format("{} of {} layers, weights of several versions", counted(plan.stages.size(), "stage"), chain.size());
  return found;
}

Found search_rannc(const Graph& both, const Pricing& pricing, const SearchLimits& limits) {
  const Pricing device = on_devices(pricing, 1);
  const Uses uses = uses_of(both);
  std::vector<RanncComponent> components;
  std::vector<double> forward, backward, activations;
  const std::size_t ops =
      static_cast<std::size_t>(std::ranges::count_if(both.ops, [](const Op& op) { return op.forward < 0; }));
  components.resize(ops);
  forward.assign(ops, 0);
  backward.assign(ops, 0);
  activations.assign(ops, 0);
  for (std::size_t i = 0; i < both.ops.size(); ++i) {
    const Op& op = both.ops[i];
    const auto of = op.forward >= 0 ? static_cast<std::size_t>(op.forward) : i;
    const double seconds = device.seconds(both, op, iteration_space(both, op));
    (op.forward >= 0 ? backward : forward)[of] += seconds;
    components[of].seconds += seconds;
    if (op.forward >= 0) continue;
    for (const int input : op.inputs) {
      if (both.tensor(input).role == Role::kParameter) components[i].bytes += both.bytes(both.tensor(input));
    }
    for (const int output : op.outputs) {
      activations[i] += op.kind == OpKind::kReshape ? 0 : both.bytes(both.tensor(output));
      for (const int consumer : uses.consumers[static_cast<std::size_t>(output)]) {
        if (both.op(consumer).forward >= 0) continue;
        components[i].next.push_back(consumer);
        components[i].next_bytes.push_back(both.bytes(both.tensor(output)));
      }
    }
  }
  const std::vector<int> block = coarsen(components, kRanncBlocks);
  TRIREME_CHECK(is_convex(components, block), "RaNNC's blocks of {} are not convex", both.name);
  const int blocks = 1 + *std::ranges::max_element(block);
  std::vector<double> f(std::size_t(blocks) + 1, 0), b = f, weights = f, saved = f, cuts = f;
  std::vector<std::string> names(static_cast<std::size_t>(blocks));
  for (std::size_t i = 0; i < ops; ++i) {
    const auto at = static_cast<std::size_t>(block[i]);
    f[at + 1] += forward[i], b[at + 1] += backward[i], weights[at + 1] += components[i].bytes;
    saved[at + 1] += activations[i];
    if (names[at].empty()) names[at] = both.ops[i].name;
    for (std::size_t e = 0; e < components[i].next.size(); ++e) {
      for (int c = block[i]; c < block[static_cast<std::size_t>(components[i].next[e])]; ++c)
        cuts[static_cast<std::size_t>(c) + 1] += components[i].next_bytes[e];
    }
  }
  for (auto* sums : {&f, &b, &weights, &saved}) {
    for (std::size_t i = 1; i < sums->size(); ++i) (*sums)[i] += (*sums)[i - 1];
  }
  int micros = 1;
  const Index batch = both.size(sample_dim(both));
  const auto bytes_of_stage = [&](int begin, int end, int devices) {
    const auto i = static_cast<std::size_t>(begin), j = static_cast<std::size_t>(end);
    return kStates * (weights[j] - weights[i]) + (saved[j] - saved[i]) / devices;
  };
  const RanncProblem problem{
      .blocks = blocks,
      .devices = pricing.mesh().ranks(),
      .cost = [&](int begin, int end, int devices) -> std::optional<RanncStageCost> {
        if (batch % (Index{micros} * devices) != 0) return std::nullopt;
        if (limits.memory_bytes > 0 && bytes_of_stage(begin, end, devices) > (1 - kRanncMargin) * limits.memory_bytes)
          return std::nullopt;
        const auto i = static_cast<std::size_t>(begin), j = static_cast<std::size_t>(end);
        const double send = end < blocks ? message(pricing, cuts[j] / devices) : 0;
        return RanncStageCost{
            (f[j] - f[i]) / devices + send,
            (b[j] - b[i]) / devices + send + all_reduce_seconds(pricing, devices, weights[j] - weights[i])};
      }};
  const auto step_seconds = [](const RanncPlan& plan, int count) {
    return plan.slowest() * (count + static_cast<double>(plan.stages.size()) - 1) / count;
  };
  std::optional<RanncPlan> best;
  int best_micros = 1;
  for (const int count : micro_counts(both)) {
    micros = count;
    std::optional<RanncPlan> next = rannc_stages(problem);
    if (!next || (best && step_seconds(*next, count) >= step_seconds(*best, best_micros))) continue;
    best = std::move(next);
    best_micros = count;
  }
  if (!best) return none_fits("rannc", both, pricing);
  micros = best_micros;
  StagedPlan plan{.micros = micros, .stages = {}};
  Found found{.method = "rannc", .strategy = replicated(both, pricing.mesh()), .cost = {}};
  found.cost.compute_seconds = best->slowest();
  found.cost.seconds = step_seconds(*best, micros);
  found.cost.communication_seconds = found.cost.seconds - found.cost.compute_seconds;
  found.pipeline =
      fmt::format("pipeline {} of {}, {} micro-batches\n", both.name, counted(best->stages.size(), "stage"), micros);
  for (const RanncStage& stage : best->stages) {
    found.cost.memory_bytes = std::max(found.cost.memory_bytes, bytes_of_stage(stage.begin, stage.end, stage.devices));
    found.pipeline += fmt::format("stage {} .. on {}\n", names[static_cast<std::size_t>(stage.begin)],
                                  counted(static_cast<std::size_t>(stage.devices), "device"));
    StagePlan& next =
        plan.stages.emplace_back(StagePlan{.ops = {}, .strategy = data_parallel(both, factored_mesh(stage.devices))});
    for (std::size_t i = 0; i < ops; ++i) {
      if (block[i] >= stage.begin && block[i] < stage.end) next.ops.push_back(static_cast<int>(i));
    }
  }
  found.plan = runnable(both, std::move(plan));
  found.note =
      fmt::format("{} of {} convex blocks, {} micro-batches", counted(best->stages.size(), "stage"), blocks, micros);
  return found;
}

namespace {

/// Layers in as many stages as their strategies have, of about the same time; each layer split, sharded and recomputed
/// as its own strategy says.
StagedPlan galvatron_plan(const Graph& both, const std::vector<ChainLayer>& chain, const GalvatronPlan& found,
                          const std::vector<LayerStrategy>& strategies, int devices, int micros) {
  const layout::Mesh mesh = factored_mesh(devices);
  const auto strategy_of = [&](std::size_t layer) -> const LayerStrategy& {
    return strategies[static_cast<std::size_t>(found.strategies[layer])];
  };
  const auto stages = static_cast<std::size_t>(strategies[0].pp);
  std::map<int, Strategy> by_degree;  // [tensor parallel]
  double total = 0, so_far = 0;
  for (const ChainLayer& layer : chain) total += layer.forward + layer.backward;
  StagedPlan plan{.micros = micros, .stages = {}};
  std::vector<std::vector<std::size_t>> layers(stages);
  for (std::size_t layer = 0; layer < chain.size(); ++layer) {
    const std::size_t left = chain.size() - layer;
    std::size_t stage = plan.stages.empty() ? 0 : plan.stages.size() - 1;
    const bool full = so_far >= total * static_cast<double>(stage + 1) / static_cast<double>(stages);
    if (!plan.stages.empty() && stage + 1 < stages && (full || left <= stages - stage - 1)) ++stage;
    if (stage == plan.stages.size()) plan.stages.push_back({.ops = {}, .strategy = replicated(both, mesh)});
    const int degree = strategy_of(layer).tp;
    if (!by_degree.contains(degree)) by_degree[degree] = tensor_and_data_parallel(both, mesh, degree);
    for (const int op : chain[layer].ops) {
      plan.stages[stage].ops.push_back(op);
      plan.stages[stage].strategy.splits[static_cast<std::size_t>(op)] =
          by_degree[degree].splits[static_cast<std::size_t>(op)];
    }
    if (strategy_of(layer).recompute) {
      plan.stages[stage].strategy.checkpoints.push_back(chain[layer].ops);
      std::ranges::sort(plan.stages[stage].strategy.checkpoints.back());
    }
    layers[stage].push_back(layer);
    so_far += chain[layer].forward + chain[layer].backward;
  }
  for (StagePlan& stage : plan.stages) std::ranges::sort(stage.ops);
  plan = runnable(both, std::move(plan));
  // A parameter is stored as the layer of its first reader in the stage says.
  const StagedGraph staged = stage_graphs(micro_graph(both, micros).graph, plan);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Graph& graph = staged.stages[s].graph;
    const Uses uses = uses_of(graph);
    for (std::size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
      if (graph.tensors[tensor].role != Role::kParameter || uses.consumers[tensor].empty()) continue;
      const int reader = staged.stages[s].op_of[static_cast<std::size_t>(uses.consumers[tensor][0])];
      const bool sharded = std::ranges::any_of(layers[s], [&](std::size_t layer) {
        return strategy_of(layer).sharded && std::ranges::count(chain[layer].ops, reader) > 0;
      });
      if (sharded)
        plan.stages[s].strategy.stored[static_cast<int>(tensor)] =
            fully_sharded(graph, staged.stages[s].strategy, static_cast<int>(tensor));
    }
  }
  return plan;
}

}  // namespace

std::optional<Found> search_galvatron(const Graph& both, const Pricing& pricing, const SearchLimits& limits) {
  const int devices = pricing.mesh().ranks();
  if ((devices & (devices - 1)) != 0) return std::nullopt;
  std::vector<ChainLayer> chain = cluster_layers(chain_of(both, on_devices(pricing, 1)), 64);
  const Index batch = both.size(sample_dim(both));
  const auto micros_with = [&](int pp) { return pp == 1 ? 1 : micro_counts(both, devices / pp).back(); };
  std::map<int, std::vector<LayerStrategy>> by_stages;
  for (const LayerStrategy& one : layer_strategies({.devices = devices, .sequence_parallel = false})) {
    if (batch % one.dp == 0) by_stages[one.pp].push_back(one);
  }
  GalvatronPlan best;
  int best_pp = 0;
  double best_seconds = 0;
  for (const auto& [pp, strategies] : by_stages) {
    if (pp > static_cast<int>(chain.size())) continue;
    // Operators under each pair of degrees, uniformly: tensor parallel inside, samples outside.
    std::map<std::pair<int, int>, OpTotals> totals;
    const Pricing part = on_devices(pricing, devices / pp);
    for (const LayerStrategy& one : strategies) {
      if (!totals.contains({one.tp, one.dp}))
        totals[{one.tp, one.dp}] = totals_of(both, part, tensor_and_data_parallel(both, part.mesh(), one.tp));
    }
    const double unit = limits.memory_bytes > 0 ? std::max(64e6, limits.memory_bytes / 1500) : 64e6;
    GalvatronProblem problem{.layers = static_cast<int>(chain.size()),
                             .strategies = strategies,
                             .cost = {},
                             .transformation = {},
                             .memory_bytes = (limits.memory_bytes > 0 ? limits.memory_bytes : 1e12) * pp,
                             .unit_bytes = unit};
    std::vector<std::vector<LayerCost>> costs;
    for (const ChainLayer& layer : chain) {
      auto& row = costs.emplace_back();
      for (const LayerStrategy& one : strategies) {
        const OpTotals& of = totals.at({one.tp, one.dp});
        double seconds = 0, weights = 0, saved = 0;
        for (const int op : layer.ops) {
          seconds += of.seconds[static_cast<std::size_t>(op)];
          weights += of.weight_bytes[static_cast<std::size_t>(op)];
          saved += of.activation_bytes[static_cast<std::size_t>(op)];
        }
        // Sharded: parameters are gathered once more, in backward, and only a share of the states stays.
        if (one.sharded) seconds += all_reduce_seconds(part, one.dp, weights) / 2;
        if (one.recompute) {
          seconds += layer.forward / (one.tp * one.dp);
          saved = layer.cut_bytes / (one.tp * one.dp);
        }
        row.push_back({seconds / pp, kStates * weights / (one.sharded ? one.dp : 1) + saved});
      }
    }
    problem.cost = [&](int layer, int s) { return costs[std::size_t(layer)][std::size_t(s)]; };
    problem.transformation = [&](int layer, int from, int to) {
      const LayerStrategy &a = strategies[static_cast<std::size_t>(from)],
                          &b = strategies[static_cast<std::size_t>(to)];
      if (a.tp == b.tp) return 0.0;
      // Samples that were on fewer devices come from others: forward and its gradient.
      const double bytes = chain[static_cast<std::size_t>(layer) - 1].cut_bytes / std::min(a.dp, b.dp);
      return 2 * message(part, bytes) / pp;
    };
    const auto plan = galvatron_layers(problem);
    if (!plan) continue;
    const double seconds = plan->seconds * (micros_with(pp) + pp - 1) / micros_with(pp);
    if (best_pp != 0 && seconds >= best_seconds) continue;
    best = *plan;
    best_pp = pp;
    best_seconds = seconds;
    best.bytes /= pp;
  }
  if (best_pp == 0) return none_fits("galvatron", both, pricing);
  Found found{.method = "galvatron", .strategy = replicated(both, pricing.mesh()), .cost = {}};
  found.cost.seconds = best_seconds;
  found.cost.compute_seconds = best.seconds;
  found.cost.communication_seconds = best_seconds - best.seconds;
  found.cost.memory_bytes = best.bytes;
  found.pipeline = fmt::format("layers {} in {}\n", both.name, counted(static_cast<std::size_t>(best_pp), "stage"));
  std::map<std::string, int> counts;
  for (std::size_t layer = 0; layer < chain.size(); ++layer) {
    const std::string name = to_text(by_stages.at(best_pp)[static_cast<std::size_t>(best.strategies[layer])]);
    ++counts[name];
    found.pipeline += fmt::format("{} {}\n", chain[layer].name, name);
  }
  std::string kinds;
  found.plan = galvatron_plan(both, chain, best, by_stages.at(best_pp), devices / best_pp, micros_with(best_pp));
  for (const auto& [name, count] : counts) kinds += fmt::format("{}{} x {}", kinds.empty() ? "" : ", ", count, name);
  found.note = kinds;
  return found;
}

}  // namespace trireme::plan::graph
