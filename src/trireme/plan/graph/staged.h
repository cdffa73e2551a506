// plan/graph/staged.h -- a graph in pipeline stages: which operators are where, how each stage splits them, and what
// goes from stage to stage.
//
//   StagedPlan plan = parse_staged(graph, text, "gpt.plan");
//   StagedGraph staged = stage_graphs(micro_graph(graph, plan.micros), plan);    // one graph a stage, and deliveries
//
// A stage is a set of forward operators with their gradient operators, on ranks and a mesh of its own. Ways lead from
// lower stages to higher ones only, so any schedule of a chain runs them; a skip connection over several stages goes
// straight to where it is read. A step is cut into micro-batches along samples. What a stage receives lies as its first
// reader there wants it; partial sums become whole before they leave. A parameter that several stages read is held by
// each, and its gradients are added up after the last micro-batch. All of it is data: the executor only carries it out.
// Depends on: strategy, backward.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/plan/graph/strategy.h"

namespace trireme::plan::graph {

struct StagePlan {
  std::vector<int> ops;  ///< forward operators, ascending
  Strategy strategy;     ///< [forward operator of the whole graph]; of others it says nothing
  bool operator==(const StagePlan&) const = default;
};

struct StagedPlan {
  int micros = 1;                 ///< micro-batches of a step
  std::string schedule = "1f1b";  ///< a kind of schedule/builders.h with one chunk a rank
  std::vector<StagePlan> stages;  ///< on ranks one after the other
  int ranks() const;
  /// The first rank of a stage.
  int first_rank(std::size_t stage) const;
  bool operator==(const StagedPlan&) const = default;
};

/// "pipeline GRAPH", "micros 8", "schedule 1f1b"; then for each stage "stage", its mesh, and a line for each of its
/// operators as in a strategy, those that are whole too.
std::string to_text(const Graph& forward, const StagedPlan& plan);
StagedPlan parse_staged(const Graph& forward, std::string_view text, const std::string& source);
bool is_staged_text(std::string_view text);

/// What contradicts itself, a sentence each: operators that are nowhere or twice, ways back, batches that do not
/// divide, schedules that cannot run it, and what find_problems() says of each stage.
std::vector<std::string> find_problems(const Graph& forward, const StagedPlan& plan);

/// The graph of one micro-batch: the dimension of samples and what reshapes make of it, divided.
struct MicroGraph {
  Graph graph;
  std::vector<int> dims;  ///< that were divided
};
/// ConfigError where the batch does not divide.
MicroGraph micro_graph(const Graph& graph, int micros);

/// One stage's operators. Tensors and dimensions have the numbers that they have in the whole graph.
struct Stage {
  Graph graph;
  Strategy strategy;       ///< [forward operator of the stage]
  std::vector<int> op_of;  ///< [operator] of the whole graph; of sums that only the stage has -1
  int first_rank = 0;
};

/// A tensor that one stage makes and another reads, of each micro-batch.
struct Delivery {
  int tensor = -1;
  int from_stage = -1, to_stage = -1;
  Sharding made, from, to;  ///< as it is made; as it leaves, without partial sums; as it arrives
  bool is_gradient = false;
};

/// A parameter of several stages, ascending; its gradient is summed at the first.
struct SharedParameter {
  int tensor = -1;
  std::vector<int> stages;
  std::vector<Sharding> shardings;  ///< [of `stages`]
};

struct StagedGraph {
  std::vector<Stage> stages;
  std::vector<Delivery> deliveries;  ///< in the order in which they are made
  std::vector<SharedParameter> shared;
};
/// Whether the schedule has weight gradients apart from those of inputs: zero-bubble ones.
bool splits_backward(const StagedPlan& plan);
/// `both`: of one micro-batch, with gradient operators. Where the schedule splits backward, weight gradients stand
/// last.
StagedGraph stage_graphs(const Graph& both, const StagedPlan& plan);

/// One rank's part of a delivery: a box of the whole tensor. Ranks are those of the world.
struct Message {
  int from = -1, to = -1;
  Place box;
};
/// Where a tensor lies: ranks from `first_rank` on, a mesh of them, a sharding.
struct Holders {
  int first_rank = 0;
  const layout::Mesh& mesh;
  const Sharding& sharding;
};
/// Every target gets its box once; replicas of a source take turns.
std::vector<Message> messages_of(const Graph& graph, int tensor, const Holders& from, const Holders& to);

/// A plan of one graph for another with the same operators and other sizes; what does not divide there stays whole, and
/// micro-batches are as many as divide.
StagedPlan transferred(const Graph& from, const StagedPlan& plan, const Graph& to);
/// Drops splits that micro-batches cannot take, innermost first.
StagedPlan made_legal(const Graph& forward, StagedPlan plan);

/// Colours and labels of a picture (draw.h): stages and splits.
GraphDrawing drawing_of(const Graph& forward, const StagedPlan& plan);
/// Every message that goes between stages in a step, a line a tensor, and what each stage inserts for a micro-batch.
std::string describe(const Graph& forward, const StagedPlan& plan);

}  // namespace trireme::plan::graph
