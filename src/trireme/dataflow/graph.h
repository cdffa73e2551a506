// dataflow/graph.h -- nodes, edges, and which worker holds which node.
//
// A message is processed by the worker of its node alone, so nodes need no locks. Whoever carries messages between
// workers is in run.h.
// Depends on: node.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/dataflow/node.h"

namespace trireme::dataflow {

/// An input or output of a node.
struct Port {
  int node = -1, port = 0;
  bool operator==(const Port&) const = default;
};

class Graph {
 public:
  /// Node 0: where instances come in and come back to.
  static constexpr int kSource = 0;
  Graph();

  int add(std::string name, std::unique_ptr<Node> node, int worker);
  /// The layer's node, for whoever wants its parameters.
  template <typename Kind, typename... Arguments>
  std::pair<int, Kind*> make(const std::string& name, int worker, Arguments&&... arguments) {
    auto node = std::make_unique<Kind>(std::forward<Arguments>(arguments)...);
    Kind* kept = node.get();
    return {add(name, std::move(node), worker), kept};
  }
  void connect(Port output, Port input);
  /// ConfigError that names an input or output that leads nowhere.
  void require_complete() const;

  int nodes() const { return static_cast<int>(nodes_.size()); }
  int workers() const { return workers_; }
  int worker_of(int node) const { return at(node).worker; }
  const std::string& name_of(int node) const { return at(node).name; }
  Node& node(int index) { return *at(index).node; }
  double flops_of(int node) const { return at(node).node ? at(node).node->flops() : 0; }
  std::vector<Transform*> transforms() const;

  /// The forward message that lets an instance in.
  Message entry(const State& state, Payload payload) const;
  /// What the node sends for it. On the worker of that node only. An internal error where a node breaks its promise.
  std::vector<Message> process(Message message);
  /// Forward messages without their backward one, over all nodes; 0 when nothing is under way. By whoever runs alone.
  std::int64_t open_keys() const;
  std::int64_t forwards() const;

 private:
  struct Held {
    std::string name;
    std::unique_ptr<Node> node;
    int worker = 0;
    std::vector<Port> outputs, inputs;          // the other ends
    std::map<std::pair<int, State>, int> open;  // by input and state: forwards without their backward
    std::int64_t forwards = 0;
  };
  class Sender;
  const Held& at(int node) const { return nodes_[static_cast<std::size_t>(node)]; }
  Held& at(int node) { return nodes_[static_cast<std::size_t>(node)]; }

  std::vector<Held> nodes_;
  int workers_ = 0;
};

}  // namespace trireme::dataflow
