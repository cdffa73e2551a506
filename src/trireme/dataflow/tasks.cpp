#include "trireme/dataflow/tasks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::dataflow {
namespace {

double mean_of(const std::vector<int>& values, std::size_t first, std::size_t every) {
  double sum = 0, count = 0;
  for (std::size_t i = first; i < values.size(); i += every) sum += values[i], ++count;
  return count > 0 ? sum / count : 0;
}

int reduced(int operation, const std::vector<int>& digits) {
  double value = 0;
  switch (operation) {
    case 0:
      value = mean_of(digits, 0, 1);
      break;
    case 1:
      value = mean_of(digits, 0, 2) - mean_of(digits, 1, 2);
      break;
    case 2:
      value = *std::ranges::max_element(digits) - *std::ranges::min_element(digits);
      break;
    default:
      value = static_cast<double>(digits.size());
  }
  const int rounded = static_cast<int>(std::lround(value)) % 10;
  return rounded < 0 ? rounded + 10 : rounded;
}

/// Words of a tree: the first two turn the sign of their sibling, then good and bad ones in turn, and some plain.
constexpr int kNegators = 2, kOpinions = 12;
int sign_of(int word) { return word < kNegators || word >= kNegators + kOpinions ? 0 : word % 2 == 0 ? 1 : -1; }

int meaning(const Tree& tree, int index) {
  const Tree::Node& node = tree.nodes[static_cast<std::size_t>(index)];
  if (node.children[0] < 0) return sign_of(node.word);
  const auto negates = [&](int child) {
    const int word = tree.nodes[static_cast<std::size_t>(child)].word;
    return word >= 0 && word < kNegators;
  };
  const int left = meaning(tree, node.children[0]), right = meaning(tree, node.children[1]);
  if (negates(node.children[0])) return -right;
  if (negates(node.children[1])) return -left;
  return std::clamp(left + right, -1, 1);
}

/// What several graphs share: who computes a vector from a token, and who ends the way forward.
class Builder {
 public:
  Builder(Task& task, const ModelOptions& options)
      : task_(task), graph_(task.graph), options_(options), next_worker_(task.trees.empty() ? kLeaf : kLeaf + 1) {
    if (options.replicas < 1) throw ConfigError("a cell without replicas computes nothing", "set replicas to 1");
  }

  int transform(const std::string& name, std::unique_ptr<Layer> layer, int worker) {
    return graph_.make<Transform>(name, worker, name, std::move(layer), options_.update, options_.seed).first;
  }

  /// Where a cell takes messages and where they come out: one node, or its replicas between a Cond and a Phi. They all
  /// begin with the same numbers.
  std::pair<Port, Port> cell(const std::string& name, const std::function<std::unique_ptr<Layer>()>& make) {
    if (options_.replicas == 1) {
      const int node = transform(name, make(), kCell);
      return {{node, 0}, {node, 0}};
    }
    const int replicas = options_.replicas;
    const int way = graph_
                        .make<Cond>(name + "/replica", kControl, replicas,
                                    [replicas](const State& state) { return state.instance % replicas; })
                        .first;
    const int joined = graph_.make<Phi>(name + "/joined", kControl, replicas).first;
    std::vector<Transform*>& group = task_.replicas.emplace_back();
    for (int replica = 0; replica < replicas; ++replica) {
      const auto [node, kept] = graph_.make<Transform>(name, replica == 0 ? kCell : next_worker_++, name, make(),
                                                       options_.update, options_.seed);
      group.push_back(kept);
      graph_.connect({way, replica}, {node, 0});
      graph_.connect({node, 0}, {joined, replica});
    }
    return {{way, 0}, {joined, 0}};
  }

  /// Where a sequence comes in, where its vectors of tokens are asked for and come from, and where its end goes.
  Port list_part(Port tokens_in, Port vectors_out, Port end) {
    Graph& graph = graph_;
    const auto& data = task_.sequences;
    const int phi = graph.make<Phi>("list/phi", kControl, 2).first;
    const int both = graph.make<Broadcast>("list/broadcast", kControl, 2).first;
    const int token =
        graph
            .make<Lookup>(
                "list/token", kControl,
                [&data](const State& state) {
                  return Payload{static_cast<double>(
                      data[static_cast<std::size_t>(state.instance)].tokens[static_cast<std::size_t>(state.position)])};
                })
            .first;
    const int concat = graph.make<Concat>("list/concat", kControl, 2).first;
    const auto [cell_in, cell_out] =
        cell("list/cell", [this] { return make_linear(2 * options_.hidden, options_.hidden, /*tanh=*/true); });
    const int count = graph
                          .make<Isu>(
                              "list/isu", kControl, [](State state) { return ++state.position, state; },
                              [](State state) { return --state.position, state; })
                          .first;
    const int more =
        graph
            .make<Cond>("list/cond", kControl, 2,
                        [&data](const State& state) {
                          return state.position <
                                         static_cast<int>(data[static_cast<std::size_t>(state.instance)].tokens.size())
                                     ? 0
                                     : 1;
                        })
            .first;
    graph.connect({phi, 0}, {both, 0});
    graph.connect({both, 0}, {concat, 0});
    graph.connect({both, 1}, {token, 0});
    graph.connect({token, 0}, tokens_in);
    graph.connect(vectors_out, {concat, 1});
    graph.connect({concat, 0}, cell_in);
    graph.connect(cell_out, {count, 0});
    graph.connect({count, 0}, {more, 0});
    graph.connect({more, 0}, {phi, 1});
    graph.connect({more, 1}, end);
    return {phi, 0};
  }

  /// Likewise of a tree.
  Port tree_part(Port tokens_in, Port vectors_out, Port end) {
    Graph& graph = graph_;
    const auto tree_of = [task = &task_](const State& state) -> const Tree& {
      return task->trees[static_cast<std::size_t>(state.instance) - task->sequences.size()];
    };
    const int leaves = graph
                           .make<Flatmap>("tree/flatmap", kControl,
                                          [tree_of](const State& state) {
                                            std::vector<std::pair<State, Payload>> words;
                                            const Tree& tree = tree_of(state);
                                            for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
                                              if (tree.nodes[i].word >= 0)
                                                words.push_back({{state.instance, static_cast<std::int32_t>(i)},
                                                                 {static_cast<double>(tree.nodes[i].word)}});
                                            }
                                            return words;
                                          })
                           .first;
    const int leaf = transform("tree/leaf", make_tree_leaf(options_.hidden, options_.hidden), kLeaf);
    const int phi = graph.make<Phi>("tree/phi", kControl, 2).first;
    const int root =
        graph.make<Cond>("tree/cond", kControl, 2, [](const State& state) { return state.position == 0 ? 1 : 0; })
            .first;
    const auto node_of = [tree_of](const State& state) {
      return tree_of(state).nodes[static_cast<std::size_t>(state.position)];
    };
    const int group =
        graph
            .make<Group>("tree/group", kControl,
                         Grouping{.group_of =
                                      [node_of](const State& state) {
                                        return State{state.instance, node_of(state).parent};
                                      },
                                  .size_of = [](const State&) { return 2; },
                                  .place_of = [node_of](const State& state) { return node_of(state).place; },
                                  .member_at =
                                      [node_of](const State& parent, int place) {
                                        return State{parent.instance, node_of(parent).children[place]};
                                      }})
            .first;
    const auto [cell_in, cell_out] = cell("tree/cell", [this] { return make_tree_cell(options_.hidden); });
    graph.connect({leaves, 0}, tokens_in);
    graph.connect(vectors_out, {leaf, 0});
    graph.connect({leaf, 0}, {phi, 0});
    graph.connect({phi, 0}, {root, 0});
    graph.connect({root, 0}, {group, 0});
    graph.connect({group, 0}, cell_in);
    graph.connect(cell_out, {phi, 1});
    graph.connect({root, 1}, end);
    return {leaves, 0};
  }

  static constexpr int kControl = 0, kEmbedding = 1, kCell = 2, kHead = 3, kLeaf = 4;

 private:
  Task& task_;
  Graph& graph_;
  const ModelOptions& options_;
  int next_worker_;  // of a further replica
};

int label_of(const Task& task, int instance) {
  const auto at = static_cast<std::size_t>(instance);
  return at < task.sequences.size() ? task.sequences[at].label : task.trees[at - task.sequences.size()].label;
}

std::unique_ptr<Task> make_task(std::vector<Sequence> sequences, std::vector<Tree> trees, const ModelOptions& options) {
  auto made = std::make_unique<Task>();
  Task* task = made.get();
  task->sequences = std::move(sequences);
  task->trees = std::move(trees);
  const bool lists = !task->sequences.empty(), has_trees = !task->trees.empty();
  if (!lists && !has_trees) throw ConfigError("a task without instances", "make at least one");
  Graph& graph = task->graph;
  Builder build(*task, options);
  const int tokens = std::max(lists ? kListTokens : 0, has_trees ? kTreeWords : 0);
  const int embedding = build.transform("embedding", make_embedding(tokens, options.hidden), Builder::kEmbedding);
  const auto [loss, kept] =
      graph.make<Loss>("loss", Builder::kHead, [task](const State& state) { return label_of(*task, state.instance); });
  task->loss = kept;
  // A tree ends with (h, c), a list with h alone; each has its head.
  const auto is_list = [task](const State& state) { return state.instance < static_cast<int>(task->sequences.size()); };
  if (lists && has_trees) {
    const int ends = graph.make<Phi>("ends", Builder::kHead, 2).first;
    const int way =
        graph.make<Cond>("kind", Builder::kControl, 2, [is_list](const State& state) { return is_list(state) ? 0 : 1; })
            .first;
    const int asked = graph.make<Phi>("tokens", Builder::kEmbedding, 2).first;
    const int given = graph
                          .make<Cond>("vectors", Builder::kEmbedding, 2,
                                      [is_list](const State& state) { return is_list(state) ? 0 : 1; })
                          .first;
    const int list_head =
        build.transform("list/head", make_linear(options.hidden, kListClasses, false), Builder::kHead);
    const int tree_head =
        build.transform("tree/head", make_linear(2 * options.hidden, kTreeClasses, false), Builder::kHead);
    graph.connect({Graph::kSource, 0}, {way, 0});
    graph.connect({asked, 0}, {embedding, 0});
    graph.connect({embedding, 0}, {given, 0});
    const Port list = build.list_part({asked, 0}, {given, 0}, {list_head, 0});
    const Port tree = build.tree_part({asked, 1}, {given, 1}, {tree_head, 0});
    graph.connect({way, 0}, list);
    graph.connect({way, 1}, tree);
    graph.connect({list_head, 0}, {ends, 0});
    graph.connect({tree_head, 0}, {ends, 1});
    graph.connect({ends, 0}, {loss, 0});
  } else {
    const int head = build.transform(
        lists ? "list/head" : "tree/head",
        make_linear(lists ? options.hidden : 2 * options.hidden, lists ? kListClasses : kTreeClasses, false),
        Builder::kHead);
    const Port entry = lists ? build.list_part({embedding, 0}, {embedding, 0}, {head, 0})
                             : build.tree_part({embedding, 0}, {embedding, 0}, {head, 0});
    graph.connect({Graph::kSource, 0}, entry);
    graph.connect({head, 0}, {loss, 0});
  }
  const auto hidden = static_cast<std::size_t>(options.hidden);
  task->source = [is_list, hidden](int instance) {
    return is_list({.instance = instance}) ? Payload(hidden, 0.0) : Payload();  // the first hidden state of a loop
  };
  return made;
}

}  // namespace

std::vector<Sequence> make_list_reduction(int count, std::uint64_t seed) {
  std::vector<Sequence> all;
  for (int i = 0; i < count; ++i) {
    const Random random(seed, "list reduction/" + std::to_string(i));
    const int operation = static_cast<int>(random.below(4, 0)), length = 1 + static_cast<int>(random.below(10, 1));
    std::vector<int> digits;
    for (int at = 0; at < length; ++at)
      digits.push_back(static_cast<int>(random.below(10, 2 + static_cast<std::uint64_t>(at))));
    Sequence& one = all.emplace_back();
    one.label = reduced(operation, digits);
    one.tokens.push_back(10 + operation);
    one.tokens.insert(one.tokens.end(), digits.begin(), digits.end());
  }
  return all;
}

std::vector<Tree> make_trees(int count, std::uint64_t seed, int most_leaves) {
  std::vector<Tree> all;
  for (int i = 0; i < count; ++i) {
    const Random random(seed, "trees/" + std::to_string(i));
    Tree& tree = all.emplace_back();
    tree.nodes.push_back({});
    // A leaf drawn at random gets two children, until there are enough.
    std::vector<int> leaves{0};
    const int wanted = 2 + static_cast<int>(random.below(static_cast<std::uint64_t>(std::max(1, most_leaves - 1)), 0));
    for (std::uint64_t draw = 1; static_cast<int>(leaves.size()) < wanted; ++draw) {
      const auto at = static_cast<std::size_t>(random.below(leaves.size(), draw));
      const int parent = leaves[at];
      leaves.erase(leaves.begin() + static_cast<std::ptrdiff_t>(at));
      for (int place = 0; place < 2; ++place) {
        const int child = static_cast<int>(tree.nodes.size());
        tree.nodes.push_back({.parent = parent, .place = place});
        tree.nodes[static_cast<std::size_t>(parent)].children[place] = child;
        leaves.push_back(child);
      }
    }
    for (const int leaf : leaves)
      tree.nodes[static_cast<std::size_t>(leaf)].word =
          static_cast<int>(random.below(kTreeWords, 1000 + static_cast<std::uint64_t>(leaf)));
    tree.label = meaning(tree, 0) + 1;
  }
  return all;
}

std::unique_ptr<Task> make_list_task(std::vector<Sequence> data, const ModelOptions& options) {
  return make_task(std::move(data), {}, options);
}
std::unique_ptr<Task> make_tree_task(std::vector<Tree> data, const ModelOptions& options) {
  return make_task({}, std::move(data), options);
}
std::unique_ptr<Task> make_mixed_task(std::vector<Sequence> sequences, std::vector<Tree> trees,
                                      const ModelOptions& options) {
  return make_task(std::move(sequences), std::move(trees), options);
}

void average_replicas(Task& task) {
  for (const std::vector<Transform*>& group : task.replicas) {
    Payload mean(group.front()->params().size(), 0.0);
    for (const Transform* replica : group) {
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += replica->params()[i];
    }
    for (double& number : mean) number /= static_cast<double>(group.size());
    for (Transform* replica : group) replica->set_params(mean);
  }
}

Scores scores_of(const Task& task) {
  Scores scores;
  const auto& seen = task.loss->seen();
  for (const auto& [instance, one] : seen) {
    scores.loss += one.loss;
    scores.accuracy += one.right ? 1 : 0;
  }
  if (seen.empty()) return scores;
  scores.loss /= static_cast<double>(seen.size());
  scores.accuracy /= static_cast<double>(seen.size());
  return scores;
}

}  // namespace trireme::dataflow
