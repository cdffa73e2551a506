#include "trireme/dataflow/graph.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::dataflow {

/// What a node sends becomes messages, and the ledger of its promise is kept.
class Graph::Sender final : public Outbox {
 public:
  Sender(Held& held) : held_(held) {}
  void forward(int output, const State& state, Payload payload) override {
    const Port to = held_.outputs.at(static_cast<std::size_t>(output));
    messages_.push_back({.node = to.node, .port = to.port, .state = state, .payload = std::move(payload)});
  }
  void backward(int input, const State& state, Payload gradient) override {
    const auto open = held_.open.find({input, state});
    TRIREME_CHECK(open != held_.open.end(), "node {} sends a second backward message of instance {}, position {}",
                  held_.name, state.instance, state.position);
    held_.open.erase(open);
    const Port to = held_.inputs.at(static_cast<std::size_t>(input));
    messages_.push_back(
        {.backward = true, .node = to.node, .port = to.port, .state = state, .payload = std::move(gradient)});
  }
  std::vector<Message> take() { return std::move(messages_); }

 private:
  Held& held_;
  std::vector<Message> messages_;
};

Graph::Graph() {
  Held source;
  source.name = "source";
  source.outputs.resize(1);
  nodes_.push_back(std::move(source));
}

int Graph::add(std::string name, std::unique_ptr<Node> node, int worker) {
  Held held;
  held.name = std::move(name);
  held.inputs.resize(static_cast<std::size_t>(node->inputs()));
  held.outputs.resize(static_cast<std::size_t>(node->outputs()));
  held.node = std::move(node);
  held.worker = worker;
  workers_ = std::max(workers_, worker + 1);
  nodes_.push_back(std::move(held));
  return nodes() - 1;
}

void Graph::connect(Port output, Port input) {
  Port& from = at(output.node).outputs.at(static_cast<std::size_t>(output.port));
  Port& to = at(input.node).inputs.at(static_cast<std::size_t>(input.port));
  TRIREME_CHECK(from.node < 0 && to.node < 0, "output {} of {} or input {} of {} is connected already", output.port,
                name_of(output.node), input.port, name_of(input.node));
  from = input;
  to = output;
}

void Graph::require_complete() const {
  for (const Held& held : nodes_) {
    for (const auto* ports : {&held.inputs, &held.outputs}) {
      const auto loose = std::ranges::find(*ports, -1, &Port::node);
      if (loose == ports->end()) continue;
      throw ConfigError(fmt::format("{} {} of node {} leads nowhere", ports == &held.inputs ? "input" : "output",
                                    loose - ports->begin(), held.name),
                        "connect every input and output of a graph");
    }
  }
}

std::vector<Transform*> Graph::transforms() const {
  std::vector<Transform*> found;
  for (const Held& held : nodes_) {
    if (auto* transform = dynamic_cast<Transform*>(held.node.get())) found.push_back(transform);
  }
  return found;
}

Message Graph::entry(const State& state, Payload payload) const {
  const Port to = nodes_.front().outputs.front();
  return {.node = to.node, .port = to.port, .state = state, .payload = std::move(payload)};
}

std::vector<Message> Graph::process(Message message) {
  Held& held = at(message.node);
  TRIREME_CHECK(held.node != nullptr, "the source computes nothing");
  Sender sender(held);
  if (message.backward) {
    held.node->backward(message.port, message.state, std::move(message.payload), sender);
  } else {
    ++held.forwards;
    const bool is_new = held.open.emplace(std::pair{message.port, message.state}, 1).second;
    TRIREME_CHECK(is_new, "node {} gets instance {}, position {} again before the first has come back", held.name,
                  message.state.instance, message.state.position);
    held.node->forward(message.port, message.state, std::move(message.payload), sender);
  }
  return sender.take();
}

std::int64_t Graph::open_keys() const {
  std::int64_t open = 0;
  for (const Held& held : nodes_) open += static_cast<std::int64_t>(held.open.size());
  return open;
}

std::int64_t Graph::forwards() const {
  std::int64_t sum = 0;
  for (const Held& held : nodes_) sum += held.forwards;
  return sum;
}

}  // namespace trireme::dataflow
