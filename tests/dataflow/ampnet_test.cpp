// AMPNet: graphs of messages train on sequences of any length and trees of any form; with one instance at a time that
// is sequential SGD bit for bit, whoever carries the messages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/dataflow/run.h"
#include "trireme/dataflow/tasks.h"

namespace trireme::dataflow {
namespace {

std::vector<int> in_order(std::size_t count) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

/// Plain SGD: one instance after the other, gradients added up by position, an update of each layer when enough are
/// there. Nothing of graphs or messages.
class Sequential {
 public:
  explicit Sequential(const ModelOptions& options) : options_(options) {}

  struct Held {
    std::unique_ptr<Layer> layer;
    Payload params;
    std::vector<Payload> waiting;
  };
  Held& layer(const std::string& name, const std::function<std::unique_ptr<Layer>()>& make) {
    Held& held = layers_[name];
    if (!held.layer) held.layer = make(), held.params = held.layer->initial(options_.seed, name);
    return held;
  }
  Held& replica_of(const std::string& name, int replica, const std::function<std::unique_ptr<Layer>()>& make) {
    Held& held = layers_[replica == 0 ? name : name + "#" + std::to_string(replica)];
    if (!held.layer) held.layer = make(), held.params = held.layer->initial(options_.seed, name);
    return held;
  }
  void average(const std::string& name, int replicas) {
    Payload mean(layers_.at(name).params.size(), 0.0);
    const auto each = [&](const auto& body) {
      for (int replica = 0; replica < replicas; ++replica)
        body(layers_.at(replica == 0 ? name : name + "#" + std::to_string(replica)).params);
    };
    each([&](const Payload& params) {
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += params[i];
    });
    for (double& number : mean) number /= replicas;
    each([&](Payload& params) { params = mean; });
  }
  static void update(Held& held, std::map<int, Payload> by_position, const UpdateRule& rule) {
    for (auto& [position, gradient] : by_position) held.waiting.push_back(std::move(gradient));
    if (static_cast<int>(held.waiting.size()) < rule.min_update_frequency) return;
    Payload sum(held.params.size(), 0.0);
    for (const Payload& gradient : held.waiting) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) held.params[i] -= rule.learning_rate * sum[i];
    held.waiting.clear();
  }
  static Payload loss_gradient(const Payload& logits, int label) {
    const double largest = *std::ranges::max_element(logits);
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit - largest);
    const double log_sum = largest + std::log(sum);
    Payload gradient(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i)
      gradient[i] = std::exp(logits[i] - log_sum) - (static_cast<int>(i) == label ? 1.0 : 0.0);
    return gradient;
  }

  /// `replica`: which cell of several it meets.
  void list(const Sequence& one, int replica = 0) {
    const int hidden = options_.hidden;
    Held& embedding = layer("embedding", [&] { return make_embedding(kListTokens, hidden); });
    Held& cell = replica_of("list/cell", replica, [&] { return make_linear(2 * hidden, hidden, true); });
    Held& head = layer("list/head", [&] { return make_linear(hidden, kListClasses, false); });
    Payload h(static_cast<std::size_t>(hidden), 0.0), of_head;
    std::vector<Payload> of_words(one.tokens.size()), of_cells(one.tokens.size());
    for (std::size_t t = 0; t < one.tokens.size(); ++t) {
      const Payload x =
          embedding.layer->forward(embedding.params, {}, {static_cast<double>(one.tokens[t])}, of_words[t]);
      h.insert(h.end(), x.begin(), x.end());
      h = cell.layer->forward(cell.params, {}, h, of_cells[t]);
    }
    const Payload logits = head.layer->forward(head.params, {}, h, of_head);
    std::map<int, Payload> head_gradient, cell_gradients, word_gradients;
    head_gradient[0].assign(head.params.size(), 0.0);
    Payload d = head.layer->backward(head.params, {}, of_head, loss_gradient(logits, one.label), head_gradient[0]);
    for (int t = static_cast<int>(one.tokens.size()) - 1; t >= 0; --t) {
      cell_gradients[t].assign(cell.params.size(), 0.0);
      word_gradients[t].assign(embedding.params.size(), 0.0);
      const auto at = static_cast<std::size_t>(t);
      const Payload both = cell.layer->backward(cell.params, {}, of_cells[at], d, cell_gradients[t]);
      d.assign(both.begin(), both.begin() + hidden);
      embedding.layer->backward(embedding.params, {}, of_words[at], {both.begin() + hidden, both.end()},
                                word_gradients[t]);
    }
    update(head, std::move(head_gradient), options_.update);
    update(cell, std::move(cell_gradients), options_.update);
    update(embedding, std::move(word_gradients), options_.update);
  }

  void tree(const Tree& one) {
    const int hidden = options_.hidden;
    Held& embedding = layer("embedding", [&] { return make_embedding(kTreeWords, hidden); });
    Held& leaf = layer("tree/leaf", [&] { return make_tree_leaf(hidden, hidden); });
    Held& cell = layer("tree/cell", [&] { return make_tree_cell(hidden); });
    Held& head = layer("tree/head", [&] { return make_linear(2 * hidden, kTreeClasses, false); });
    std::map<int, Payload> words, nodes, word_gradients, leaf_gradients, cell_gradients, head_gradient;
    const std::function<Payload(int)> up = [&](int at) -> Payload {
      const Tree::Node& node = one.nodes[static_cast<std::size_t>(at)];
      if (node.word >= 0) {
        const Payload x = embedding.layer->forward(embedding.params, {}, {static_cast<double>(node.word)}, words[at]);
        return leaf.layer->forward(leaf.params, {}, x, nodes[at]);
      }
      Payload both = up(node.children[0]);
      const Payload right = up(node.children[1]);
      both.insert(both.end(), right.begin(), right.end());
      return cell.layer->forward(cell.params, {}, both, nodes[at]);
    };
    Payload of_head;
    const Payload logits = head.layer->forward(head.params, {}, up(0), of_head);
    head_gradient[0].assign(head.params.size(), 0.0);
    const std::function<void(int, Payload)> down = [&](int at, Payload d) {
      const Tree::Node& node = one.nodes[static_cast<std::size_t>(at)];
      Held& held = node.word >= 0 ? leaf : cell;
      Payload& gradient = (node.word >= 0 ? leaf_gradients : cell_gradients)[at];
      gradient.assign(held.params.size(), 0.0);
      const Payload of_input = held.layer->backward(held.params, {}, nodes[at], d, gradient);
      if (node.word >= 0) {
        word_gradients[at].assign(embedding.params.size(), 0.0);
        embedding.layer->backward(embedding.params, {}, words[at], of_input, word_gradients[at]);
        return;
      }
      down(node.children[0], {of_input.begin(), of_input.begin() + 2 * hidden});
      down(node.children[1], {of_input.begin() + 2 * hidden, of_input.end()});
    };
    down(0, head.layer->backward(head.params, {}, of_head, loss_gradient(logits, one.label), head_gradient[0]));
    update(head, std::move(head_gradient), options_.update);
    update(cell, std::move(cell_gradients), options_.update);
    update(leaf, std::move(leaf_gradients), options_.update);
    update(embedding, std::move(word_gradients), options_.update);
  }

  /// Of a graph: rounds in which each vertex sums what its neighbours' states become through the matrices of edges.
  void deduction(const Deduction& one) {
    const auto hidden = static_cast<std::size_t>(options_.hidden);
    const auto edge_layer = [&](int type) -> Held& {
      return layer("graph/edge " + std::to_string(type),
                   [&] { return make_linear(options_.hidden, options_.hidden, false); });
    };
    Held& cell = layer("graph/cell", [&] { return make_gru(options_.hidden); });
    Held& head = layer("graph/head", [&] { return make_linear(options_.hidden, 1, false); });
    for (int type = 0; type < kEdgeTypes; ++type) edge_layer(type);
    const auto vertices = static_cast<std::size_t>(one.vertices), edges = one.edges.size();
    std::vector<std::vector<Payload>> of_edges(kDeductionRounds), of_cells(kDeductionRounds);
    std::vector<Payload> h(vertices, Payload(hidden, 0.0));
    h[static_cast<std::size_t>(one.asked)][0] = 1;
    const auto add = [](Payload& sum, const Payload& term) {
      if (sum.empty()) return sum = term, void();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
    };
    for (std::size_t round = 0; round < kDeductionRounds; ++round) {
      of_edges[round].resize(edges);
      of_cells[round].resize(vertices);
      std::vector<Payload> heard(vertices);
      for (std::size_t e = 0; e < edges; ++e) {
        const Held& edge = edge_layer(one.edges[e].type);
        add(heard[static_cast<std::size_t>(one.edges[e].to)],
            edge.layer->forward(edge.params, {}, h[static_cast<std::size_t>(one.edges[e].from)], of_edges[round][e]));
      }
      for (std::size_t v = 0; v < vertices; ++v) {
        Payload both = h[v];
        both.insert(both.end(), heard[v].begin(), heard[v].end());
        h[v] = cell.layer->forward(cell.params, {}, both, of_cells[round][v]);
      }
    }
    std::vector<Payload> of_scores(vertices), d(vertices);
    Payload scores;
    for (std::size_t v = 0; v < vertices; ++v)
      scores.push_back(head.layer->forward(head.params, {}, h[v], of_scores[v]).front());
    const Payload d_scores = loss_gradient(scores, one.label);
    std::map<int, Payload> head_gradients, cell_gradients;
    std::vector<std::map<int, Payload>> edge_gradients(kEdgeTypes);
    for (std::size_t v = 0; v < vertices; ++v) {
      Payload& gradient = head_gradients[static_cast<int>(v)];
      gradient.assign(head.params.size(), 0.0);
      d[v] = head.layer->backward(head.params, {}, of_scores[v], {d_scores[v]}, gradient);
    }
    for (std::size_t round = kDeductionRounds; round-- > 0;) {
      std::vector<Payload> d_heard(vertices), d_own(vertices), d_sent(vertices);
      for (std::size_t v = 0; v < vertices; ++v) {
        Payload& gradient = cell_gradients[static_cast<int>(round * vertices + v)];
        gradient.assign(cell.params.size(), 0.0);
        const Payload both = cell.layer->backward(cell.params, {}, of_cells[round][v], d[v], gradient);
        const auto half = both.begin() + static_cast<std::ptrdiff_t>(hidden);
        d_own[v].assign(both.begin(), half);
        d_heard[v].assign(half, both.end());
      }
      for (std::size_t e = 0; e < edges; ++e) {
        const Deduction::Edge& fact = one.edges[e];
        const Held& edge = edge_layer(fact.type);
        Payload& gradient = edge_gradients[static_cast<std::size_t>(fact.type)][static_cast<int>(round * edges + e)];
        gradient.assign(edge.params.size(), 0.0);
        add(d_sent[static_cast<std::size_t>(fact.from)],
            edge.layer->backward(edge.params, {}, of_edges[round][e], d_heard[static_cast<std::size_t>(fact.to)],
                                 gradient));
      }
      for (std::size_t v = 0; v < vertices; ++v) {
        add(d_sent[v], d_own[v]);
        d[v] = d_sent[v];
      }
    }
    update(head, std::move(head_gradients), options_.update);
    update(cell, std::move(cell_gradients), options_.update);
    for (int type = 0; type < kEdgeTypes; ++type)
      update(edge_layer(type), std::move(edge_gradients[static_cast<std::size_t>(type)]), options_.update);
  }

  void expect_equal(const Task& task, const std::string& what) const {
    for (const Transform* node : task.graph.transforms()) {  // replicas have one name, and the same numbers
      EXPECT_EQ(node->params(), layers_.at(node->name()).params) << what << ": " << node->name();
      EXPECT_EQ(node->staleness(), 0) << what << ": " << node->name();
    }
  }

 private:
  ModelOptions options_;
  std::map<std::string, Held> layers_;
};

const VirtualTimes kUnit{.service = [](const Graph&, int, bool) { return 1.0; }, .link = 0.5};

TEST(AmpNet, OneKeyIsSequentialSgdBitForBitWhoeverCarriesMessages) {
  for (const int frequency : {1, 25}) {
    const ModelOptions options{.hidden = 6, .update = {0.05, frequency}, .seed = 3};
    Sequential lists(options), trees(options), graphs(options);
    const auto sequences = make_list_reduction(12, 1);
    const auto forest = make_trees(12, 2);
    for (const Sequence& one : sequences) lists.list(one);
    for (const Tree& one : forest) trees.tree(one);
    const auto facts = make_deductions(12, 3);
    for (const Deduction& one : facts) graphs.deduction(one);
    const auto check = [&](const std::string& what, const auto& run) {
      const auto list = make_list_task(sequences, options);
      run(*list);
      lists.expect_equal(*list, what + " list");
      const auto tree = make_tree_task(forest, options);
      run(*tree);
      trees.expect_equal(*tree, what + " tree");
      const auto graph = make_deduction_task(facts, options);
      run(*graph);
      graphs.expect_equal(*graph, what + " graph");
    };
    const RunOptions one_key{.instances = in_order(12), .max_active_keys = 1};
    check("virtual", [&](Task& task) { run_virtual(task.graph, task.source, one_key, kUnit); });
    check("threads", [&](Task& task) { run_threads(task.graph, task.source, one_key); });
    for (const std::uint64_t seed : {1, 2, 3})
      check("seeded", [&](Task& task) { run_seeded(task.graph, task.source, one_key, seed); });
  }
}

TEST(AmpNet, EveryForwardHasOneBackwardAndQueuesAreBounded) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    const auto task = make_mixed_task(make_list_reduction(10, seed), make_trees(10, seed), {.hidden = 4, .seed = seed});
    const RunOptions options{.instances = in_order(20), .max_active_keys = 6};
    const RunResult result = run_seeded(task->graph, task->source, options, seed);
    EXPECT_EQ(task->graph.open_keys(), 0);
    EXPECT_EQ(result.messages, 2 * task->graph.forwards() - 20) << "but for losses, which turn round themselves";
    EXPECT_LE(result.longest_queue, 6 * 4 * 15) << "instances in flight x messages of the longest";
    EXPECT_EQ(task->loss->seen().size(), 20U);
  }
}

/// A node that answers twice, or never, is found out.
TEST(AmpNet, ANodeThatBreaksItsPromiseIsNamed) {
  struct Twice final : Node {
    void forward(int, const State& state, Payload payload, Outbox& out) override { out.forward(0, state, payload); }
    void backward(int, const State& state, Payload gradient, Outbox& out) override {
      out.backward(0, state, gradient);
      out.backward(0, state, gradient);
    }
  };
  Graph graph;
  const int node = graph.add("twice", std::make_unique<Twice>(), 0);
  const auto [loss, kept] = graph.make<Loss>("loss", 0, [](const State&) { return 0; });
  graph.connect({Graph::kSource, 0}, {node, 0});
  EXPECT_THROW(graph.require_complete(), ConfigError);
  graph.connect({node, 0}, {loss, 0});
  EXPECT_THROW(run_virtual(
                   graph, [](int) { return Payload(2, 0.0); }, {.instances = {0}}, kUnit),
               InternalError);
}

TEST(AmpNet, ThroughputRisesWithKeysUntilTheSlowestWorkerIsBusy) {
  // What computes takes long beside what only sends on.
  const VirtualTimes times{
      .service = [](const Graph& graph, int node, bool) { return graph.flops_of(node) > 0 ? 6.0 : 0.25; }, .link = 0.5};
  double before = 0, busiest = 0;
  for (const int keys : {1, 2, 4, 8, 16, 32}) {
    const auto task = make_list_task(make_list_reduction(120, 5), {.hidden = 8, .seed = 5});
    const auto result = run_virtual(task->graph, task->source,
                                    {.instances = in_order(task->instances()), .max_active_keys = keys}, times);
    const double throughput = result.throughput(task->instances());
    EXPECT_GE(throughput, before * 0.99) << keys << " keys";
    if (keys <= 2) {
      EXPECT_GT(throughput, before * 1.2) << keys << " keys";
    }
    before = throughput;
    busiest = result.busiest();
  }
  EXPECT_GT(busiest, 0.9);
}

/// Each replica takes the instances of its turn; after an epoch all go on from their mean.
TEST(AmpNet, ReplicasOfACellAreSequentialSgdOfTheirInstancesAveragedAfterAnEpoch) {
  constexpr int kReplicas = 3;
  const ModelOptions options{.hidden = 5, .replicas = kReplicas, .update = {0.05, 1}, .seed = 4};
  const auto sequences = make_list_reduction(13, 6);
  Sequential reference(options);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (std::size_t i = 0; i < sequences.size(); ++i) reference.list(sequences[i], static_cast<int>(i) % kReplicas);
    reference.average("list/cell", kReplicas);
  }
  const RunOptions one_key{.instances = in_order(13), .max_active_keys = 1};
  const auto check = [&](const std::string& what, const auto& run) {
    const auto task = make_list_task(sequences, options);
    ASSERT_EQ(task->replicas.size(), 1U);
    ASSERT_EQ(task->replicas.front().size(), static_cast<std::size_t>(kReplicas));
    run(*task);
    EXPECT_NE(task->replicas.front()[0]->params(), task->replicas.front()[1]->params()) << "each has its own updates";
    average_replicas(*task);
    run(*task);
    average_replicas(*task);
    reference.expect_equal(*task, what);
  };
  check("virtual", [&](Task& task) { run_virtual(task.graph, task.source, one_key, kUnit); });
  check("threads", [&](Task& task) { run_threads(task.graph, task.source, one_key); });
  check("seeded", [&](Task& task) { run_seeded(task.graph, task.source, one_key, 5); });
}

TEST(AmpNet, ReplicasTakeTheWorkOfTheBusiestNode) {
  const VirtualTimes times{
      .service = [](const Graph& graph, int node, bool) { return graph.name_of(node) == "list/cell" ? 6.0 : 0.05; },
      .link = 0.5};
  const auto throughput = [&](int replicas) {
    const auto task =
        make_list_task(make_list_reduction(200, 5), {.hidden = 4, .replicas = replicas, .update = {}, .seed = 5});
    return run_virtual(task->graph, task->source, {.instances = in_order(task->instances()), .max_active_keys = 64},
                       times)
        .throughput(task->instances());
  };
  const double one = throughput(1);
  EXPECT_GT(throughput(2), 1.8 * one);
  EXPECT_GT(throughput(4), 3.2 * one);
}

/// Little's law for every worker's queue, in virtual time to rounding and on threads: L = lambda W, and L is bounded by
/// what is in flight.
TEST(AmpNet, MetersOfEveryQueueAgreeWithLittlesLawAndAreBounded) {
  const auto task = make_mixed_task(make_list_reduction(40, 2), make_trees(40, 2), {.hidden = 4, .seed = 2});
  double before = 0;
  for (const int keys : {1, 4, 16}) {
    const RunOptions options{.instances = in_order(task->instances()), .max_active_keys = keys};
    const auto ran = run_virtual(task->graph, task->source, options, kUnit);
    ASSERT_EQ(ran.queues.size(), static_cast<std::size_t>(task->graph.workers()));
    double longest = 0;
    std::int64_t arrivals = 0;
    for (const QueueReading& queue : ran.queues) {
      EXPECT_EQ(queue.arrivals, queue.departures) << "nothing is left in a queue";
      EXPECT_NEAR(queue.length(), queue.rate() * queue.wait(), 1e-6 * (1 + queue.length()));
      longest = std::max(longest, queue.length());
      arrivals += queue.arrivals;
    }
    EXPECT_EQ(arrivals, ran.messages);
    EXPECT_LE(longest, keys * 15) << "instances in flight x the messages of one";
    EXPECT_GE(longest, before);
    before = longest;
    for (const QueueReading& queue : run_threads(task->graph, task->source, options).queues) {
      EXPECT_EQ(queue.arrivals, queue.departures);
      // Two clocks are read for each message, so the two measurements differ by what passes between them.
      EXPECT_NEAR(queue.length(), queue.rate() * queue.wait(), 0.05 * queue.length() + 1e-3);
    }
  }
}

TEST(AmpNet, LearnsListsAndTreesWithManyKeys) {
  const auto accuracy = [](Task& task, int epochs, int keys) {
    Scores scores;
    for (int epoch = 0; epoch < epochs; ++epoch) {
      task.loss->clear();
      run_virtual(task.graph, task.source, {.instances = in_order(task.instances()), .max_active_keys = keys}, kUnit);
      scores = scores_of(task);
    }
    return scores.accuracy;
  };
  const auto tree = make_tree_task(make_trees(300, 7, 5), {.hidden = 12, .update = {0.1, 1}, .seed = 7});
  EXPECT_GT(accuracy(*tree, 12, 8), 0.8) << "a third is chance";
  std::int64_t stale = 0;
  for (const Transform* node : tree->graph.transforms()) stale = std::max(stale, node->staleness());
  EXPECT_GT(stale, 0);
  const auto graph = make_deduction_task(make_deductions(150, 8), {.hidden = 10, .update = {0.1, 1}, .seed = 8});
  EXPECT_GT(accuracy(*graph, 20, 8), 0.9) << "a kind of four by chance";
}

/// The answer is the kind that the kind of the one who is asked for fears, wherever their vertices are.
TEST(AmpNet, DeductionsFollowFromTheirFacts) {
  std::map<int, int> labels;
  for (const Deduction& one : make_deductions(200, 1)) {
    const auto along = [&](int vertex, int type) {
      int found = -1;
      for (const Deduction::Edge& edge : one.edges) {
        if (edge.from == vertex && edge.type == type) found = edge.to;
      }
      return found;
    };
    EXPECT_EQ(along(along(one.asked, 0), 2), one.label);
    EXPECT_EQ(one.edges.size(), 16U) << "four of each fact, and their inverses";
    ++labels[one.label];
  }
  EXPECT_EQ(labels.size(), 8U) << "any vertex may be the answer";
}

TEST(AmpNet, LayersHaveTheGradientsOfDifferences) {
  struct Case {
    std::unique_ptr<Layer> layer;
    std::size_t inputs;
  };
  Case cases[] = {{make_linear(3, 2, true), 3}, {make_tree_leaf(3, 2), 3}, {make_tree_cell(2), 8}, {make_gru(3), 6}};
  for (const Case& one : cases) {
    Payload params = one.layer->initial(1, "test"), input(one.inputs), saved, ignored;
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = 0.3 * static_cast<double>(i) - 0.5;
    const Payload output = one.layer->forward(params, {}, input, saved);
    Payload weights(output.size());
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 1.0 + 0.5 * static_cast<double>(i);
    Payload gradient(params.size(), 0.0);
    const Payload of_input = one.layer->backward(params, {}, saved, weights, gradient);
    const auto value = [&] {
      const Payload out = one.layer->forward(params, {}, input, ignored);
      return std::inner_product(out.begin(), out.end(), weights.begin(), 0.0);
    };
    const auto check = [&](double& number, double expected) {
      const double kept = number, step = 1e-6;
      number = kept + step;
      const double above = value();
      number = kept - step;
      const double below = value();
      number = kept;
      EXPECT_NEAR((above - below) / (2 * step), expected, 1e-8);
    };
    for (std::size_t i = 0; i < params.size(); ++i) check(params[i], gradient[i]);
    for (std::size_t i = 0; i < input.size(); ++i) check(input[i], of_input[i]);
  }
}

/// Group and Ungroup, Split and Concat are each other's inverse, both ways.
TEST(AmpNet, GroupsAndSplitsComeApartAgain) {
  const Grouping pairs{.group_of =
                           [](const State& state) {
                             return State{state.instance, state.position / 2 - 1};
                           },
                       .size_of = [](const State&) { return 2; },
                       .place_of = [](const State& state) { return state.position % 2; },
                       .member_at =
                           [](const State& group, int place) {
                             return State{group.instance, 2 * (group.position + 1) + place};
                           }};
  Graph graph;
  const int ungroup = graph.make<Ungroup>("ungroup", 0, pairs).first;
  const int split = graph.make<Split>("split", 1, std::vector<std::size_t>{1, 2}).first;
  const int concat = graph.make<Concat>("concat", 0, 2).first;
  const int group = graph.make<Group>("group", 1, pairs).first;
  const auto [loss, kept] = graph.make<Loss>("loss", 0, [](const State&) { return 5; });
  graph.connect({Graph::kSource, 0}, {ungroup, 0});
  graph.connect({ungroup, 0}, {split, 0});
  graph.connect({split, 0}, {concat, 0});
  graph.connect({split, 1}, {concat, 1});
  graph.connect({concat, 0}, {group, 0});
  graph.connect({group, 0}, {loss, 0});
  run_seeded(
      graph, [](int) { return Payload{0, 1, 2, 3, 4, 9}; }, {.instances = {0, 1, 2}, .max_active_keys = 3}, 9);
  EXPECT_TRUE(std::ranges::all_of(kept->seen(), [](const auto& one) { return one.second.right; }))
      << "the sixth number is the largest, so all numbers came out in their order";
  EXPECT_EQ(kept->seen().size(), 3U);
}

}  // namespace
}  // namespace trireme::dataflow
