// From a plan with stages to a graph for each stage and what goes between them.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "trireme/base/error.h"
#include "trireme/plan/graph/backward.h"
#include "trireme/plan/graph/search/baselines.h"
#include "trireme/plan/graph/staged.h"

namespace trireme::plan::graph {
namespace {

class StageCutter {
 public:
  StageCutter(const Graph& both, const StagedPlan& plan)
      : both_(both), plan_(plan), uses_(uses_of(both)), weights_last_(splits_backward(plan)) {
    stage_of_.assign(both.ops.size(), -1);
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      for (const int op : plan.stages[s].ops) stage_of_[static_cast<std::size_t>(op)] = static_cast<int>(s);
    }
    for (std::size_t i = 0; i < both.ops.size(); ++i) {
      if (both.ops[i].forward >= 0) stage_of_[i] = stage_of_[static_cast<std::size_t>(both.ops[i].forward)];
      TRIREME_CHECK(stage_of_[i] >= 0, "operator {} is in no stage", both.ops[i].name);
    }
  }

  StagedGraph run() {
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) staged_.stages.push_back(cut(static_cast<int>(s)));
    find_deliveries();
    find_shared();
    return std::move(staged_);
  }

 private:
  Stage cut(int s) const {
    const StagePlan& of = plan_.stages[static_cast<std::size_t>(s)];
    Stage stage{.graph = {both_.name, both_.dims, both_.tensors, {}},
                .strategy = {.mesh = of.strategy.mesh, .splits = {}},
                .op_of = {},
                .first_rank = plan_.first_rank(static_cast<std::size_t>(s))};
    std::map<int, int> local;                // [operator of the whole graph]
    std::map<int, std::vector<int>> pieces;  // [parameter] parts of its gradient that are made here
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      const Op& op = both_.ops[i];
      if (stage_of_[i] != s || is_parameter_sum(both_, op)) continue;
      local[static_cast<int>(i)] = static_cast<int>(stage.graph.ops.size());
      stage.graph.ops.push_back(op);
      stage.op_of.push_back(static_cast<int>(i));
      if (op.forward >= 0) stage.graph.ops.back().forward = local.at(op.forward);
      if (op.forward < 0) stage.strategy.splits.push_back(of.strategy.splits[i]);
      for (const int output : op.outputs) {
        const int parameter = both_.tensor(output).grad_of;
        if (parameter >= 0 && both_.tensor(parameter).role == Role::kParameter) pieces[parameter].push_back(output);
      }
    }
    add_sums(stage, local, pieces);
    if (weights_last_) put_weights_last(stage);
    keep_own_tensors(stage);
    for (const auto& [parameter, sharding] : of.strategy.stored) stage.strategy.stored[parameter] = sharding;
    for (const auto& group : of.strategy.checkpoints) {
      auto& here = stage.strategy.checkpoints.emplace_back();
      for (const int op : group) {
        TRIREME_CHECK(local.contains(op), "operator {} is in another stage than its checkpoint", both_.op(op).name);
        here.push_back(local.at(op));
      }
    }
    return stage;
  }

  /// Of a parameter that is read several times here.
  void add_sums(Stage& stage, const std::map<int, int>& local, const std::map<int, std::vector<int>>& pieces) const {
    for (const Op& op : both_.ops) {
      if (!is_parameter_sum(both_, op)) continue;
      const int parameter = both_.tensor(op.outputs[0]).grad_of;
      const auto found = pieces.find(parameter);
      if (found == pieces.end() || found->second.size() < 2) continue;
      Op sum = op;
      sum.inputs = found->second;
      for (const int reader : uses_.consumers[static_cast<std::size_t>(parameter)]) {
        if (!local.contains(reader)) continue;
        sum.forward = local.at(reader);
        break;
      }
      stage.graph.ops.push_back(std::move(sum));
      stage.op_of.push_back(-1);
    }
  }

  /// Nothing reads gradients of weights but their sums, so they may stand behind all others, in their order.
  void put_weights_last(Stage& stage) const {
    Stage sorted{.graph = {both_.name, both_.dims, both_.tensors, {}},
                 .strategy = stage.strategy,
                 .op_of = {},
                 .first_rank = stage.first_rank};
    for (const bool weights : {false, true}) {
      for (std::size_t i = 0; i < stage.graph.ops.size(); ++i) {
        if (makes_weight_gradients(both_, stage.graph.ops[i]) != weights) continue;
        sorted.graph.ops.push_back(stage.graph.ops[i]);
        sorted.op_of.push_back(stage.op_of[i]);
      }
    }
    stage = std::move(sorted);
  }

  /// Numbers stay; what the stage does not touch is no more than a name, and what others make is received.
  void keep_own_tensors(Stage& stage) const {
    std::vector<bool> touched(both_.tensors.size(), false), made(both_.tensors.size(), false);
    for (const Op& op : stage.graph.ops) {
      for (const int input : op.inputs) touched[static_cast<std::size_t>(input)] = true;
      for (const int output : op.outputs) {
        touched[static_cast<std::size_t>(output)] = made[static_cast<std::size_t>(output)] = true;
      }
    }
    for (std::size_t i = 0; i < both_.tensors.size(); ++i) {
      Tensor& tensor = stage.graph.tensors[i];
      if (!touched[i]) {
        tensor.role = Role::kActivation;
        tensor.grad_of = -1;
      } else if (tensor.role == Role::kActivation && !made[i]) {
        tensor.role = Role::kReceived;
      }
    }
  }

  void find_deliveries() {
    std::vector<std::vector<IterationSpace>> spaces;
    for (const Stage& stage : staged_.stages) {
      auto& of = spaces.emplace_back();
      for (const Op& op : stage.graph.ops) of.push_back(iteration_space(stage.graph, op));
    }
    const auto split_of = [&](const Stage& stage, std::size_t op) -> const Split& {
      const int forward = stage.graph.ops[op].forward;
      return stage.strategy.splits[forward >= 0 ? static_cast<std::size_t>(forward) : op];
    };
    std::vector<std::map<int, std::size_t>> readers(staged_.stages.size());  // [stage] tensor: first operator
    for (std::size_t s = 0; s < staged_.stages.size(); ++s) {
      const Graph& graph = staged_.stages[s].graph;
      for (std::size_t i = 0; i < graph.ops.size(); ++i) {
        for (const int input : graph.ops[i].inputs) {
          if (graph.tensor(input).role == Role::kReceived) readers[s].emplace(input, i);
        }
      }
    }
    for (std::size_t i = 0; i < both_.ops.size(); ++i) {
      if (is_parameter_sum(both_, both_.ops[i])) continue;
      const auto from = static_cast<std::size_t>(stage_of_[i]);
      const Stage& source = staged_.stages[from];
      const auto op =
          static_cast<std::size_t>(std::ranges::find(source.op_of, static_cast<int>(i)) - source.op_of.begin());
      for (std::size_t k = 0; k < both_.ops[i].outputs.size(); ++k) {
        const int tensor = both_.ops[i].outputs[k];
        for (std::size_t to = 0; to < staged_.stages.size(); ++to) {
          const auto reader = readers[to].find(tensor);
          if (to == from || reader == readers[to].end()) continue;
          const Graph& target = staged_.stages[to].graph;
          const auto& inputs = target.ops[reader->second].inputs;
          const auto input = static_cast<std::size_t>(std::ranges::find(inputs, tensor) - inputs.begin());
          Delivery delivery{
              .tensor = tensor,
              .from_stage = static_cast<int>(from),
              .to_stage = static_cast<int>(to),
              .made = output_sharding(spaces[from][op], split_of(source, op), k),
              .from = {},
              .to = input_sharding(spaces[to][reader->second], split_of(staged_.stages[to], reader->second), input),
              .is_gradient = both_.ops[i].forward >= 0};
          delivery.from = delivery.made;
          delivery.from.partial.clear();
          staged_.deliveries.push_back(std::move(delivery));
        }
      }
    }
  }

  void find_shared() {
    std::vector<Uses> uses;
    for (const Stage& stage : staged_.stages) uses.push_back(uses_of(stage.graph));
    std::vector<std::vector<IterationSpace>> spaces(staged_.stages.size());  // of stages that share something
    for (std::size_t i = 0; i < both_.tensors.size(); ++i) {
      if (both_.tensors[i].role != Role::kParameter) continue;
      SharedParameter shared{.tensor = static_cast<int>(i), .stages = {}, .shardings = {}};
      for (std::size_t s = 0; s < staged_.stages.size(); ++s) {
        if (!uses[s].consumers[i].empty()) shared.stages.push_back(static_cast<int>(s));
      }
      if (shared.stages.size() < 2) continue;
      for (const int s : shared.stages) {
        const Stage& stage = staged_.stages[static_cast<std::size_t>(s)];
        auto& of = spaces[static_cast<std::size_t>(s)];
        if (of.empty())
          for (const Op& op : stage.graph.ops) of.push_back(iteration_space(stage.graph, op));
        shared.shardings.push_back(
            parameter_sharding(stage.graph, uses[static_cast<std::size_t>(s)], of, stage.strategy, shared.tensor));
      }
      staged_.shared.push_back(std::move(shared));
    }
  }

  const Graph& both_;
  const StagedPlan& plan_;
  const Uses uses_;
  const bool weights_last_;
  std::vector<int> stage_of_;
  StagedGraph staged_;
};

}  // namespace

MicroGraph micro_graph(const Graph& graph, int micros) {
  MicroGraph micro{graph, {}};
  const int samples = sample_dim(graph);
  if (micros < 1 || graph.size(samples) % micros != 0)
    throw ConfigError(fmt::format("{} samples do not divide into {} micro-batches", graph.size(samples), micros),
                      "take as many micro-batches as divide the batch");
  std::set<int> divided{samples};
  // A reshape that joins samples with others, or cuts them, has them outermost.
  for (const Op& op : graph.ops) {
    for (const Regroup& regroup : op.regroups) {
      const auto holds = [&](const std::vector<int>& dims) {
        return std::ranges::any_of(dims, [&](int dim) { return divided.contains(dim); });
      };
      if (!holds(regroup.from) || holds(regroup.to)) continue;
      const int dim = regroup.to.front();
      if (!divided.contains(regroup.from.front()) || graph.size(dim) % micros != 0)
        throw ConfigError(fmt::format("operator {} mixes samples with other dimensions", op.name),
                          "put samples first, or take one micro-batch");
      divided.insert(dim);
    }
  }
  micro.dims.assign(divided.begin(), divided.end());
  for (const int dim : micro.dims) micro.graph.dims[static_cast<std::size_t>(dim)].size /= micros;
  return micro;
}

StagedGraph stage_graphs(const Graph& both, const StagedPlan& plan) { return StageCutter(both, plan).run(); }

std::vector<Message> messages_of(const Graph& graph, int tensor, const Holders& from, const Holders& to) {
  std::vector<std::pair<Place, std::vector<int>>> sources;  // who has which box
  for (int rank = 0; rank < from.mesh.ranks(); ++rank) {
    Place place = place_of(graph, from.mesh, from.mesh.coordinates(rank), tensor, from.sharding);
    const auto found = std::ranges::find_if(sources, [&](const auto& source) { return source.first == place; });
    if (found == sources.end()) {
      sources.push_back({std::move(place), {from.first_rank + rank}});
    } else {
      found->second.push_back(from.first_rank + rank);
    }
  }
  std::vector<Message> messages;
  for (int rank = 0; rank < to.mesh.ranks(); ++rank) {
    const Place wanted = place_of(graph, to.mesh, to.mesh.coordinates(rank), tensor, to.sharding);
    for (const auto& [place, ranks] : sources) {
      Message message{
          .from = ranks[static_cast<std::size_t>(rank) % ranks.size()], .to = to.first_rank + rank, .box = {}};
      bool any = true;
      for (std::size_t dim = 0; dim < wanted.origin.size(); ++dim) {
        const Index begin = std::max(wanted.origin[dim], place.origin[dim]);
        const Index end = std::min(wanted.origin[dim] + wanted.sizes[dim], place.origin[dim] + place.sizes[dim]);
        any = any && begin < end;
        message.box.origin.push_back(begin);
        message.box.sizes.push_back(end - begin);
      }
      if (any) messages.push_back(std::move(message));
    }
  }
  return messages;
}

}  // namespace trireme::plan::graph
