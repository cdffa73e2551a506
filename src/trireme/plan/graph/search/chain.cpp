#include "trireme/plan/graph/search/chain.h"

#include <algorithm>
#include <limits>
#include <set>

#include "trireme/base/error.h"
#include "trireme/plan/graph/search/cost_table.h"

namespace trireme::plan::graph {

std::vector<ChainLayer> chain_of(const Graph& both, const Pricing& device) {
  std::vector<ChainLayer> chain;
  const Uses uses = uses_of(both);
  std::vector<int> layer_of(both.ops.size(), -1);
  for (std::size_t i = 0; i < both.ops.size(); ++i) {
    const Op& op = both.ops[i];
    const bool is_forward = op.forward < 0;
    if (is_forward) {
      if (chain.empty() || !follows(op)) chain.push_back({.name = op.name});
      layer_of[i] = static_cast<int>(chain.size()) - 1;
      chain.back().ops.push_back(static_cast<int>(i));
    } else {
      layer_of[i] = layer_of[static_cast<std::size_t>(op.forward)];
    }
    ChainLayer& layer = chain[static_cast<std::size_t>(layer_of[i])];
    const IterationSpace space = iteration_space(both, op);
    (is_forward ? layer.forward : layer.backward) += device.seconds(both, op, space);
    layer.flops += work_of(both, op, space).flops;
    if (!is_forward) continue;
    if (op.kind != OpKind::kReshape) {
      for (const int output : op.outputs) layer.activation_bytes += both.bytes(both.tensor(output));
    }
  }
  for (std::size_t tensor = 0; tensor < both.tensors.size(); ++tensor) {
    const Tensor& of = both.tensors[tensor];
    std::set<int> readers;
    for (const int consumer : uses.consumers[tensor]) {
      if (both.op(consumer).forward < 0) readers.insert(layer_of[static_cast<std::size_t>(consumer)]);
    }
    if (readers.empty()) continue;
    if (of.role == Role::kParameter) {
      for (const int layer : readers) chain[static_cast<std::size_t>(layer)].weight_bytes += both.bytes(of);
    }
    if (of.role != Role::kActivation || of.grad_of >= 0) continue;
    const int made = layer_of[static_cast<std::size_t>(uses.producer[tensor])];
    for (int layer = made; layer < *readers.rbegin(); ++layer)
      chain[static_cast<std::size_t>(layer)].cut_bytes += both.bytes(of);
  }
  return chain;
}

std::vector<std::pair<int, int>> cluster_runs(const std::vector<double>& flops, const std::vector<double>& cuts,
                                              int layers, double spread) {
  const auto n = static_cast<int>(flops.size());
  layers = std::min(layers, n);
  std::vector<double> before(static_cast<std::size_t>(n) + 1, 0);
  for (int i = 0; i < n; ++i)
    before[static_cast<std::size_t>(i) + 1] = before[static_cast<std::size_t>(i)] + flops[static_cast<std::size_t>(i)];
  const double largest = *std::ranges::max_element(flops);
  const double most = std::max(largest, (1 + spread) * before.back() / layers) * (1 + 1e-12);
  struct State {
    double cut = std::numeric_limits<double>::infinity(), squares = std::numeric_limits<double>::infinity();
    int from = -1;
    bool operator<(const State& other) const { return cut != other.cut ? cut < other.cut : squares < other.squares; }
  };
  // best[r][k]: the first k layers in r runs.
  std::vector<std::vector<State>> best(static_cast<std::size_t>(layers) + 1,
                                       std::vector<State>(static_cast<std::size_t>(n) + 1));
  best[0][0] = {0, 0, 0};
  for (int r = 1; r <= layers; ++r) {
    for (int k = r; k <= n; ++k) {
      State& state = best[static_cast<std::size_t>(r)][static_cast<std::size_t>(k)];
      for (int i = k - 1; i >= r - 1; --i) {
        const double inside = before[static_cast<std::size_t>(k)] - before[static_cast<std::size_t>(i)];
        if (inside > most) break;
        const State& last = best[static_cast<std::size_t>(r) - 1][static_cast<std::size_t>(i)];
        const double cut = i == 0 ? last.cut : std::max(last.cut, cuts[static_cast<std::size_t>(i) - 1]);
        const State next{cut, last.squares + inside * inside, i};
        if (next < state) state = next;
      }
    }
  }
  // Fewer runs where no division into so many keeps the limit.
  int runs = layers;
  while (runs > 1 && best[static_cast<std::size_t>(runs)][static_cast<std::size_t>(n)].from < 0) --runs;
  std::vector<std::pair<int, int>> result;
  for (int k = n; runs > 0; --runs) {
    const State& state = best[static_cast<std::size_t>(runs)][static_cast<std::size_t>(k)];
    if (state.from < 0) return {{0, n}};
    result.insert(result.begin(), {state.from, k});
    k = state.from;
  }
  return result;
}

std::vector<ChainLayer> cluster_layers(const std::vector<ChainLayer>& chain, int layers, double spread) {
  std::vector<double> flops, cuts;
  for (const ChainLayer& layer : chain) flops.push_back(layer.flops), cuts.push_back(layer.cut_bytes);
  std::vector<ChainLayer> clustered;
  for (const auto& [begin, end] : cluster_runs(flops, cuts, layers, spread)) {
    ChainLayer joined = chain[static_cast<std::size_t>(begin)];
    for (int i = begin + 1; i < end; ++i) {
      const ChainLayer& next = chain[static_cast<std::size_t>(i)];
      joined.ops.insert(joined.ops.end(), next.ops.begin(), next.ops.end());
      joined.forward += next.forward;
      joined.backward += next.backward;
      joined.weight_bytes += next.weight_bytes;
      joined.activation_bytes += next.activation_bytes;
      joined.cut_bytes = next.cut_bytes;
      joined.flops += next.flops;
    }
    clustered.push_back(std::move(joined));
  }
  return clustered;
}

}  // namespace trireme::plan::graph
