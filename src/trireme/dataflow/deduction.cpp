// Deduction on graphs of facts, and the gated graph network that learns it.
#include <array>
#include <memory>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/permutation.h"
#include "trireme/base/random.h"
#include "trireme/dataflow/tasks.h"

namespace trireme::dataflow {
namespace {

constexpr int kKinds = 4, kNames = kDeductionVertices - kKinds;
constexpr int kIs = 0, kFears = 2;  // and the number after each is its inverse

/// Where a position stands: vertices and edges of round 0, then of round 1, and so on.
struct Place {
  int round = 0, vertex = -1, edge = -1;  // one of the two
};

/// A deduction with what its edges are to its vertices.
class Facts {
 public:
  explicit Facts(const Deduction& deduction) : deduction_(deduction) {
    for (const Deduction::Edge& edge : deduction.edges) {
      out_place_.push_back(count(&Deduction::Edge::from, edge.from, out_place_.size()));
      in_place_.push_back(count(&Deduction::Edge::to, edge.to, in_place_.size()));
    }
  }
  Place place(const State& state) const {
    const int round = state.position / each(), at = state.position % each();
    return at < deduction_.vertices ? Place{.round = round, .vertex = at}
                                    : Place{.round = round, .edge = at - deduction_.vertices};
  }
  State vertex(int instance, int round, int vertex) const { return {instance, round * each() + vertex}; }
  State edge(int instance, int round, int edge) const {
    return {instance, round * each() + deduction_.vertices + edge};
  }
  const Deduction::Edge& fact(const State& state) const {
    return deduction_.edges[static_cast<std::size_t>(place(state).edge)];
  }
  /// Groups of edges by the vertex that they leave, or come to.
  template <int Deduction::Edge::*kEnd>
  State group_of(const State& state) const {
    return vertex(state.instance, place(state).round, fact(state).*kEnd);
  }
  template <int Deduction::Edge::*kEnd>
  int size_of(const State& group) const {
    return count(kEnd, place(group).vertex, deduction_.edges.size());
  }
  int place_of(const State& state, bool leaves) const {
    return (leaves ? out_place_ : in_place_)[static_cast<std::size_t>(place(state).edge)];
  }
  template <int Deduction::Edge::*kEnd>
  State member_at(const State& group, int wanted) const {
    const Place at = place(group);
    for (std::size_t i = 0; i < deduction_.edges.size(); ++i) {
      if (deduction_.edges[i].*kEnd == at.vertex && wanted-- == 0)
        return edge(group.instance, at.round, static_cast<int>(i));
    }
    TRIREME_CHECK(false, "vertex {} has fewer edges", at.vertex);
  }

 private:
  int each() const { return deduction_.vertices + static_cast<int>(deduction_.edges.size()); }
  int count(int Deduction::Edge::*end, int vertex, std::size_t before) const {
    int found = 0;
    for (std::size_t i = 0; i < before; ++i) found += deduction_.edges[i].*end == vertex ? 1 : 0;
    return found;
  }

  const Deduction& deduction_;
  std::vector<int> out_place_, in_place_;  // of each edge among those of its vertex
};

template <int Deduction::Edge::*kEnd>
Grouping edges_by(const std::vector<Facts>& facts) {
  constexpr bool kLeaves = kEnd == &Deduction::Edge::from;
  const auto of = [&facts](const State& state) -> const Facts& {
    return facts[static_cast<std::size_t>(state.instance)];
  };
  return {
      .group_of = [of](const State& state) { return of(state).template group_of<kEnd>(state); },
      .size_of = [of](const State& group) { return of(group).template size_of<kEnd>(group); },
      .place_of = [of](const State& state) { return of(state).place_of(state, kLeaves); },
      .member_at = [of](const State& group, int place) { return of(group).template member_at<kEnd>(group, place); }};
}

/// A task of graphs, with what nodes read of them.
struct DeductionTask : Task {
  std::vector<Facts> facts;
};

}  // namespace

std::vector<Deduction> make_deductions(int count, std::uint64_t seed) {
  std::vector<Deduction> all;
  for (int i = 0; i < count; ++i) {
    const Random random(seed, "deduction/" + std::to_string(i));
    const Permutation numbers(Random(seed, "deduction/numbers/" + std::to_string(i)), kDeductionVertices);
    const auto vertex = [&](int thing) { return static_cast<int>(numbers.at(static_cast<std::uint64_t>(thing))); };
    Deduction& one = all.emplace_back(Deduction{.vertices = kDeductionVertices});
    const auto add = [&](int from, int to, int type) {
      one.edges.push_back({vertex(from), vertex(to), type});
      one.edges.push_back({vertex(to), vertex(from), type + 1});
    };
    std::array<int, kNames> kind_of{};
    std::array<int, kKinds> fear_of{};
    for (int kind = 0; kind < kKinds; ++kind) {
      const int other = static_cast<int>(random.below(kKinds - 1, static_cast<std::uint64_t>(kind)));
      fear_of[static_cast<std::size_t>(kind)] = other < kind ? other : other + 1;
      add(kind, fear_of[static_cast<std::size_t>(kind)], kFears);
    }
    for (int name = 0; name < kNames; ++name) {
      kind_of[static_cast<std::size_t>(name)] =
          static_cast<int>(random.below(kKinds, static_cast<std::uint64_t>(kKinds + name)));
      add(kKinds + name, kind_of[static_cast<std::size_t>(name)], kIs);
    }
    const int asked = static_cast<int>(random.below(kNames, kKinds + kNames));
    one.asked = vertex(kKinds + asked);
    one.label = vertex(fear_of[static_cast<std::size_t>(kind_of[static_cast<std::size_t>(asked)])]);
  }
  return all;
}

std::unique_ptr<Task> make_deduction_task(std::vector<Deduction> data, const ModelOptions& options) {
  if (data.empty()) throw ConfigError("a task without instances", "make at least one");
  if (options.replicas != 1) throw ConfigError("cells of graph networks have no replicas", "set replicas to 1");
  auto made = std::make_unique<DeductionTask>();
  DeductionTask* task = made.get();
  task->deductions = std::move(data);
  for (const Deduction& deduction : task->deductions) task->facts.emplace_back(deduction);
  const auto facts_of = [task](const State& state) -> const Facts& {
    return task->facts[static_cast<std::size_t>(state.instance)];
  };
  constexpr int kControl = 0, kCell = 1, kHead = 2, kFirstEdge = 3;  // workers
  Graph& graph = task->graph;
  const auto transform = [&](const std::string& name, std::unique_ptr<Layer> layer, int worker) {
    return graph.make<Transform>(name, worker, name, std::move(layer), options.update, options.seed).first;
  };
  const auto hidden = static_cast<std::size_t>(options.hidden);
  // Every vertex begins with zeros, and with a mark where it is asked for.
  const int vertices =
      graph
          .make<Flatmap>("graph/vertices", kControl,
                         [task, facts_of, hidden](const State& state) {
                           const Deduction& one = task->deductions[static_cast<std::size_t>(state.instance)];
                           std::vector<std::pair<State, Payload>> all;
                           for (int vertex = 0; vertex < one.vertices; ++vertex) {
                             Payload h(hidden, 0.0);
                             if (vertex == one.asked) h[0] = 1;
                             all.emplace_back(facts_of(state).vertex(state.instance, 0, vertex), std::move(h));
                           }
                           return all;
                         })
          .first;
  const int phi = graph.make<Phi>("graph/phi", kControl, 2).first;
  const int more = graph
                       .make<Cond>("graph/cond", kControl, 2,
                                   [facts_of](const State& state) {
                                     return facts_of(state).place(state).round < kDeductionRounds ? 0 : 1;
                                   })
                       .first;
  const int both = graph.make<Broadcast>("graph/broadcast", kControl, 2).first;
  const int spread = graph.make<Spread>("graph/spread", kControl, edges_by<&Deduction::Edge::from>(task->facts)).first;
  const int type = graph
                       .make<Cond>("graph/type", kControl, kEdgeTypes,
                                   [facts_of](const State& state) { return facts_of(state).fact(state).type; })
                       .first;
  const int joined = graph.make<Phi>("graph/joined", kControl, kEdgeTypes).first;
  const int sum = graph.make<Aggregate>("graph/sum", kControl, edges_by<&Deduction::Edge::to>(task->facts)).first;
  const int concat = graph.make<Concat>("graph/concat", kControl, 2).first;
  const int cell = transform("graph/cell", make_gru(options.hidden), kCell);
  const int round = graph
                        .make<Isu>(
                            "graph/round", kControl,
                            [facts_of](State state) {
                              const Place at = facts_of(state).place(state);
                              return facts_of(state).vertex(state.instance, at.round + 1, at.vertex);
                            },
                            [facts_of](State state) {
                              const Place at = facts_of(state).place(state);
                              return facts_of(state).vertex(state.instance, at.round - 1, at.vertex);
                            })
                        .first;
  const int head = transform("graph/head", make_linear(options.hidden, 1, false), kHead);
  const int scores =
      graph
          .make<Group>(
              "graph/scores", kHead,
              Grouping{.group_of = [](const State& state) { return State{.instance = state.instance}; },
                       .size_of =
                           [task](const State& group) {
                             return task->deductions[static_cast<std::size_t>(group.instance)].vertices;
                           },
                       .place_of = [facts_of](const State& state) { return facts_of(state).place(state).vertex; },
                       .member_at =
                           [facts_of](const State& group, int place) {
                             return facts_of(group).vertex(group.instance, kDeductionRounds, place);
                           }})
          .first;
  const auto [loss, kept] = graph.make<Loss>("loss", kHead, [task](const State& state) {
    return task->deductions[static_cast<std::size_t>(state.instance)].label;
  });
  task->loss = kept;
  graph.connect({Graph::kSource, 0}, {vertices, 0});
  graph.connect({vertices, 0}, {phi, 0});
  graph.connect({phi, 0}, {more, 0});
  graph.connect({more, 0}, {both, 0});
  graph.connect({both, 0}, {spread, 0});
  graph.connect({spread, 0}, {type, 0});
  for (int i = 0; i < kEdgeTypes; ++i) {
    const int edge = transform("graph/edge " + std::to_string(i), make_linear(options.hidden, options.hidden, false),
                               kFirstEdge + i);
    graph.connect({type, i}, {edge, 0});
    graph.connect({edge, 0}, {joined, i});
  }
  graph.connect({joined, 0}, {sum, 0});
  graph.connect({both, 1}, {concat, 0});
  graph.connect({sum, 0}, {concat, 1});
  graph.connect({concat, 0}, {cell, 0});
  graph.connect({cell, 0}, {round, 0});
  graph.connect({round, 0}, {phi, 1});
  graph.connect({more, 1}, {head, 0});
  graph.connect({head, 0}, {scores, 0});
  graph.connect({scores, 0}, {loss, 0});
  task->source = [](int) { return Payload(); };
  return made;
}

}  // namespace trireme::dataflow
