#include "trireme/plan/graph/search/cost_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "trireme/base/error.h"
#include "trireme/plan/graph/search/conversion_prices.h"
#include "trireme/plan/graph/search/liveness.h"

namespace trireme::plan::graph {
namespace {

class Groups {
 public:
  explicit Groups(std::size_t size) : parent_(size) { std::iota(parent_.begin(), parent_.end(), 0); }
  int root(int i) {
    while (parent_[static_cast<std::size_t>(i)] != i) i = parent_[static_cast<std::size_t>(i)];
    return i;
  }
  /// The earlier one leads.
  void join(int a, int b) {
    a = root(a), b = root(b);
    if (a != b) parent_[static_cast<std::size_t>(std::max(a, b))] = std::min(a, b);
  }

 private:
  std::vector<int> parent_;
};

bool is_heavy(const Op& op) {
  const std::size_t factors = op.inputs.size() - (op.bias ? 1 : 0);
  return op.kind == OpKind::kConvolution || op.kind == OpKind::kAttention || op.kind == OpKind::kLstmCell ||
         (op.kind == OpKind::kEinsum && factors >= 2);
}

std::vector<std::vector<int>> nodes_of(const Graph& both, std::size_t forward_ops) {
  const Uses uses = uses_of(both);
  Groups groups(forward_ops);
  for (std::size_t tensor = 0; tensor < both.tensors.size(); ++tensor) {
    if (both.tensors[tensor].role != Role::kParameter) continue;
    int first = -1;
    for (const int consumer : uses.consumers[tensor]) {
      if (static_cast<std::size_t>(consumer) >= forward_ops) continue;
      if (first >= 0) groups.join(first, consumer);
      first = first < 0 ? consumer : first;
    }
  }
  for (std::size_t i = 0; i < forward_ops; ++i) {
    if (!follows(both.ops[i])) continue;
    int from = -1, made = 0;
    for (const int input : both.ops[i].inputs) {
      const int producer = uses.producer[static_cast<std::size_t>(input)];
      if (producer < 0) continue;
      ++made;
      from = producer;
    }
    if (made == 1) groups.join(from, static_cast<int>(i));
  }
  std::map<int, std::vector<int>> members;
  for (std::size_t i = 0; i < forward_ops; ++i)
    members[groups.root(static_cast<int>(i))].push_back(static_cast<int>(i));
  std::vector<std::vector<int>> nodes;
  for (auto& [root, ops] : members) nodes.push_back(std::move(ops));
  return nodes;
}

class ProblemBuilder {
 public:
  ProblemBuilder(const Graph& both, const Pricing& pricing, const ChoiceOptions& options)
      : both_(both), pricing_(pricing), options_(options), prices_(pricing) {
    forward_ops_ =
        static_cast<std::size_t>(std::ranges::count_if(both.ops, [](const Op& op) { return op.forward < 0; }));
    for (const Op& op : both.ops) spaces_.push_back(iteration_space(both, op));
    derived_.resize(forward_ops_);
    for (std::size_t i = 0; i < both.ops.size(); ++i) derived_[std::size_t(forward_of_op(int(i)))].push_back(int(i));
  }

  GraphProblem run() {
    result_.mesh = pricing_.mesh();
    result_.nodes = nodes_of(both_, forward_ops_);
    node_of_.resize(forward_ops_);
    for (std::size_t node = 0; node < result_.nodes.size(); ++node) {
      for (const int op : result_.nodes[node]) node_of_[static_cast<std::size_t>(op)] = static_cast<int>(node);
    }
    for (std::size_t node = 0; node < result_.nodes.size(); ++node) {
      result_.choices.push_back(choices_of(result_.nodes[node]));
      auto& costs = result_.problem.cost.emplace_back();
      for (const Split& split : result_.choices.back()) costs.push_back(node_seconds(result_.nodes[node], split));
    }
    const LivenessRows live(both_, result_.nodes, result_.choices, pricing_.mesh());
    result_.problem.memory = live.row(live.peak_of_one_device());
    for (const Link& link : links_of(both_)) add_link(link);
    for (auto& [ends, pair] : pairs_) result_.problem.pairs.push_back(std::move(pair));
    return std::move(result_);
  }

 private:
  int forward_of_op(int op) const { return both_.op(op).forward >= 0 ? both_.op(op).forward : op; }

  bool is_free(std::size_t axis) const {
    const int number = static_cast<int>(axis);
    return options_.only_axis < 0 || options_.only_axis == number || options_.other_axis == number;
  }

  /// Dimensions that an operator can be split along: sample, channel, height, width.
  std::vector<int> dims_of(int op) const {
    std::vector<int> dims;
    for (const IterationDim& dim : spaces_[static_cast<std::size_t>(op)].dims) {
      const bool wanted = dim.kind == DimKind::kOutput || (dim.kind == DimKind::kReduced && options_.reduced) ||
                          (dim.kind == DimKind::kWindowed && options_.halos) ||
                          (dim.kind == DimKind::kStatistic && options_.statistics);
      if (wanted && dim.size > 1) dims.push_back(dim.dim);
    }
    // The loss has no output: its samples are a sum, which costs nothing but a scalar.
    if (both_.op(op).kind == OpKind::kSoftmaxLoss) {
      for (const IterationDim& dim : spaces_[static_cast<std::size_t>(op)].dims) {
        if (dim.kind == DimKind::kReduced && !options_.reduced) dims.push_back(dim.dim);
      }
    }
    return dims;
  }

  bool is_legal(const std::vector<int>& ops, const Split& split) const {
    for (const int op : ops) {
      if (!options_.heavy_are_split || !is_heavy(both_.op(op))) continue;
      for (std::size_t axis = 0; axis < split.size(); ++axis) {
        const bool is_wide = is_free(axis) && pricing_.mesh().axes()[axis].size > 1;
        if (is_wide && (split[axis] < 0 || spaces_[static_cast<std::size_t>(op)].find(split[axis]) < 0)) return false;
      }
    }
    for (const int op : ops) {
      for (const int derived : derived_[static_cast<std::size_t>(op)]) {
        if (!why_not(both_, pricing_.mesh(), both_.op(derived), spaces_[std::size_t(derived)], split).empty())
          return false;
      }
    }
    return true;
  }

  /// Axes go to the dimensions of the node's operators, in the order in which they name them.
  std::vector<Split> choices_of(const std::vector<int>& ops) const {
    std::vector<int> dims;
    for (const int op : ops) {
      for (const int dim : dims_of(op)) {
        if (std::ranges::find(dims, dim) == dims.end()) dims.push_back(dim);
      }
    }
    const std::size_t axes = pricing_.mesh().axes().size();
    std::vector<Split> choices;
    Split split = options_.base ? split_of(*options_.base, ops) : Split(axes, -1);
    const int whole = static_cast<int>(dims.size());
    const auto extend = [&](const auto& self, std::size_t axis, int least) -> void {
      if (axis == axes) {
        if (is_legal(ops, split)) choices.push_back(split);
        return;
      }
      if (!is_free(axis)) return self(self, axis + 1, least);
      for (int i = options_.canonical ? least : 0; i <= whole; ++i) {
        split[axis] = i == whole ? -1 : dims[static_cast<std::size_t>(i)];
        self(self, axis + 1, i);
      }
    };
    extend(extend, 0, 0);
    if (options_.also) {
      const Split own = split_of(*options_.also, ops);
      if (is_legal(ops, own) && std::ranges::find(choices, own) == choices.end()) choices.push_back(own);
    }
    return choices;
  }

  /// Of a node's operators the one that has the most of it: a strategy says less of those that lack its dimensions.
  static Split split_of(const Strategy& strategy, const std::vector<int>& ops) {
    Split base;
    std::ptrdiff_t most = -1;
    for (const int op : ops) {
      const Split& split = strategy.splits[static_cast<std::size_t>(op)];
      const std::ptrdiff_t used = std::ranges::count_if(split, [](int dim) { return dim >= 0; });
      if (used > most) most = used, base = split;
    }
    return base;
  }

  double node_seconds(const std::vector<int>& ops, const Split& split) const {
    double seconds = 0;
    for (const int op : ops) {
      std::set<std::pair<int, MeshAxes>> halos;
      for (const int derived : derived_[static_cast<std::size_t>(op)]) {
        const IterationSpace& space = spaces_[static_cast<std::size_t>(derived)];
        const Op& part = both_.op(derived);
        seconds += pricing_.seconds(both_, part, space, degrees_of(pricing_.mesh(), space, split));
        for (const Exchange& exchange : exchanges_of(both_, pricing_.mesh(), part, space, split)) {
          if (exchange.tensor >= 0 && !halos.emplace(exchange.tensor, exchange.step.axes).second) continue;
          seconds += pricing_.seconds(exchange.step);
        }
      }
    }
    return seconds;
  }

  void add_link(const Link& link) {
    const int a = node_of_[static_cast<std::size_t>(forward_of_op(link.producer))];
    const int b = node_of_[static_cast<std::size_t>(forward_of_op(link.consumer))];
    const double bytes = both_.bytes(both_.tensor(link.tensor));
    const auto &from = result_.choices[static_cast<std::size_t>(a)], &to = result_.choices[static_cast<std::size_t>(b)];
    std::vector<int> from_ids, to_ids;
    for (const Split& split : from) from_ids.push_back(prices_.id_of(ends_of(both_, spaces_, link, split, split).from));
    for (const Split& split : to) to_ids.push_back(prices_.id_of(ends_of(both_, spaces_, link, split, split).to));
    if (a == b) {
      for (std::size_t i = 0; i < from.size(); ++i)
        result_.problem.cost[static_cast<std::size_t>(a)][i] +=
            prices_.seconds(bytes, from_ids[i], to_ids[i], link.is_update);
      return;
    }
    PairCost& pair = pairs_[{std::min(a, b), std::max(a, b)}];
    if (pair.cost.empty()) {
      pair.a = std::min(a, b);
      pair.b = std::max(a, b);
      pair.cost.assign(from.size() * to.size(), 0);
    }
    for (std::size_t i = 0; i < from.size(); ++i) {
      for (std::size_t j = 0; j < to.size(); ++j) {
        const double seconds = prices_.seconds(bytes, from_ids[i], to_ids[j], link.is_update);
        pair.cost[a < b ? i * to.size() + j : j * from.size() + i] += seconds;
      }
    }
  }

  const Graph& both_;
  const Pricing& pricing_;
  const ChoiceOptions options_;
  ConversionPrices prices_;
  std::size_t forward_ops_ = 0;
  std::vector<IterationSpace> spaces_;
  std::vector<std::vector<int>> derived_;  // [forward operator] itself and its gradients
  std::vector<int> node_of_;
  std::map<std::pair<int, int>, PairCost> pairs_;
  GraphProblem result_;
};

}  // namespace

bool follows(const Op& op) {
  switch (op.kind) {
    case OpKind::kElementwise:
    case OpKind::kNorm:
    case OpKind::kRotary:
    case OpKind::kSplit:
      return true;
    case OpKind::kReshape:
      // Where the dimension that can be split gets another name, the operator needs a choice of its own.
      return std::ranges::all_of(op.regroups, [](const Regroup& regroup) {
        return std::ranges::find(regroup.from, regroup.to.front()) != regroup.from.end();
      });
    default:
      return false;
  }
}

double cost_of(const SearchProblem& problem, const Assignment& assignment) {
  double sum = 0;
  const auto choice = [&](int node) { return static_cast<std::size_t>(assignment[static_cast<std::size_t>(node)]); };
  for (std::size_t node = 0; node < problem.cost.size(); ++node)
    sum += problem.cost[node][choice(static_cast<int>(node))];
  for (const PairCost& pair : problem.pairs)
    sum += pair.cost[choice(pair.a) * problem.cost[static_cast<std::size_t>(pair.b)].size() + choice(pair.b)];
  return sum;
}

double memory_of(const MemoryRow& row, const Assignment& assignment) {
  double sum = 0;
  for (std::size_t node = 0; node < row.size(); ++node) sum += row[node][static_cast<std::size_t>(assignment[node])];
  return sum;
}

double memory_of(const SearchProblem& problem, const Assignment& assignment) {
  double most = memory_of(problem.memory, assignment);
  for (const MemoryRow& row : problem.rows) most = std::max(most, memory_of(row, assignment));
  return most;
}

Strategy GraphProblem::strategy_of(const Graph& both, const Assignment& assignment) const {
  Strategy strategy = replicated(both, mesh);
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const Split& chosen = choices[node][static_cast<std::size_t>(assignment[node])];
    for (const int op : nodes[node]) {
      const IterationSpace space = iteration_space(both, both.op(op));
      for (std::size_t axis = 0; axis < chosen.size(); ++axis) {
        if (chosen[axis] >= 0 && space.find(chosen[axis]) >= 0)
          strategy.splits[static_cast<std::size_t>(op)][axis] = chosen[axis];
      }
    }
  }
  return strategy;
}

int GraphProblem::choice_of(int node, const Split& split) const {
  const auto& all = choices[static_cast<std::size_t>(node)];
  const auto found = std::ranges::find(all, split);
  return found == all.end() ? -1 : static_cast<int>(found - all.begin());
}

std::vector<Strategy> strategies_of_choices(const Graph& both, const layout::Mesh& mesh) {
  const std::vector<double> free(mesh.axes().size(), 0);
  const GraphProblem problem =
      make_problem(both, Pricing(mesh, AlphaBeta{free, free}), {.canonical = true, .reduced = true});
  std::size_t most = 0;
  for (const auto& choices : problem.choices) most = std::max(most, choices.size());
  std::vector<Strategy> strategies;
  for (std::size_t i = 0; i < most; ++i) {
    Assignment assignment;
    for (const auto& choices : problem.choices) assignment.push_back(static_cast<int>(std::min(i, choices.size() - 1)));
    strategies.push_back(problem.strategy_of(both, assignment));
  }
  return strategies;
}

GraphProblem make_problem(const Graph& both, const Pricing& pricing, const ChoiceOptions& options) {
  return ProblemBuilder(both, pricing, options).run();
}

}  // namespace trireme::plan::graph
