// dataflow/node.h -- the kinds of nodes of a graph, after AMPNet (Gaunt et al. 2017, section 3).
//
// A node gets forward messages on its inputs and backward messages on its outputs. Its promise: for every forward
// message it sends, sooner or later, exactly one backward message to the same input with the same state. Who keeps it
// node by node needs nobody who knows the whole graph. Messages of different keys come in any order.
// Depends on: message, layer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trireme/dataflow/layer.h"
#include "trireme/dataflow/message.h"

namespace trireme::dataflow {

/// Where a node's messages go: to whoever is at the other end of that output or input.
class Outbox {
 public:
  virtual ~Outbox() = default;
  virtual void forward(int output, const State& state, Payload payload) = 0;
  virtual void backward(int input, const State& state, Payload gradient) = 0;
};

class Node {
 public:
  virtual ~Node() = default;
  virtual int inputs() const { return 1; }
  virtual int outputs() const { return 1; }
  virtual void forward(int input, const State& state, Payload payload, Outbox& out) = 0;
  virtual void backward(int output, const State& state, Payload gradient, Outbox& out) = 0;
  /// Of a forward; a backward takes twice as many.
  virtual double flops() const { return 0; }
};

/// When a parameterised node updates, by itself and asking nobody.
struct UpdateRule {
  double learning_rate = 0.05;
  /// Gradients that make an update. It happens when that many are there and the instance that completed them has no
  /// message left at this node, so that the gradients of an instance are not torn apart.
  int min_update_frequency = 1;
};

/// A layer with its parameters. Gradients wait by key and are added up in the order of keys, so that an update does not
/// depend on the order in which they came.
class Transform final : public Node {
 public:
  Transform(std::string name, std::unique_ptr<Layer> layer, UpdateRule rule, std::uint64_t seed);
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;
  double flops() const override { return layer_->flops(); }

  const std::string& name() const { return name_; }
  const Payload& params() const { return params_; }
  /// Of as many numbers: what an average of replicas brings.
  void set_params(const Payload& params);
  std::int64_t updates() const { return updates_; }
  /// Updates between a forward and its backward, at most so far.
  std::int64_t staleness() const { return staleness_; }
  /// Frozen, it gives gradients and keeps none.
  void freeze(bool frozen) { frozen_ = frozen; }
  /// With whatever gradients there are.
  void update();

 private:
  struct Saved {
    Payload values;
    std::int64_t version = 0;
  };
  std::string name_;
  std::unique_ptr<Layer> layer_;
  UpdateRule rule_;
  Payload params_;
  std::map<State, Saved> saved_;
  std::map<State, Payload> gradients_;
  std::map<int, int> open_;  // by instance: forwards that have not come back
  std::int64_t updates_ = 0, staleness_ = 0;
  bool frozen_ = false;
};

/// A function of state and payload without a gradient: a token that stands at a position.
class Lookup final : public Node {
 public:
  explicit Lookup(std::function<Payload(const State&)> look) : look_(std::move(look)) {}
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  std::function<Payload(const State&)> look_;
  std::map<State, std::size_t> sizes_;
};

/// Sends each message to one of its outputs.
class Cond final : public Node {
 public:
  Cond(int outputs, std::function<int(const State&)> choose) : outputs_(outputs), choose_(std::move(choose)) {}
  int outputs() const override { return outputs_; }
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  int outputs_;
  std::function<int(const State&)> choose_;
};

/// Takes what comes on any input; the way back is where it came from.
class Phi final : public Node {
 public:
  explicit Phi(int inputs) : inputs_(inputs) {}
  int inputs() const override { return inputs_; }
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  int inputs_;
  std::map<State, int> origins_;
};

/// Invertible state update: a loop counts.
class Isu final : public Node {
 public:
  using Update = std::function<State(State)>;
  Isu(Update update, Update inverse) : update_(std::move(update)), inverse_(std::move(inverse)) {}
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  Update update_, inverse_;
};

/// One message for one on each input, their payloads one after the other.
class Concat final : public Node {
 public:
  explicit Concat(int inputs) : inputs_(inputs) {}
  int inputs() const override { return inputs_; }
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  int inputs_;
  std::map<State, std::map<int, Payload>> waiting_;
  std::map<State, std::vector<std::size_t>> sizes_;
};

/// The inverse: a piece of so many numbers to each output.
class Split final : public Node {
 public:
  explicit Split(std::vector<std::size_t> sizes) : sizes_(std::move(sizes)) {}
  int outputs() const override { return static_cast<int>(sizes_.size()); }
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  std::vector<std::size_t> sizes_;
  std::map<State, std::map<int, Payload>> waiting_;
};

/// The same to each output; gradients add up in the order of outputs.
class Broadcast final : public Node {
 public:
  explicit Broadcast(int outputs) : outputs_(outputs) {}
  int outputs() const override { return outputs_; }
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  int outputs_;
  std::map<State, std::map<int, Payload>> waiting_;
};

/// Messages that belong together become one: which group, how many make it, and the place of each in it.
struct Grouping {
  std::function<State(const State&)> group_of;
  std::function<int(const State& group)> size_of;
  std::function<int(const State&)> place_of;
  /// The state of the member at a place: what Ungroup makes.
  std::function<State(const State& group, int place)> member_at;
};

class Group final : public Node {
 public:
  explicit Group(Grouping grouping) : grouping_(std::move(grouping)) {}
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  struct Member {
    State state;
    Payload payload;
    std::size_t size = 0;
  };
  Grouping grouping_;
  std::map<State, std::map<int, Member>> groups_;  // by group and place
};

/// The inverse: a message of equal pieces becomes its members.
class Ungroup final : public Node {
 public:
  explicit Ungroup(Grouping grouping) : grouping_(std::move(grouping)) {}
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  Grouping grouping_;
  std::map<State, std::map<int, Payload>> waiting_;  // gradients, by group and place
};

/// The same payload to each member of a group: what a vertex sends along its edges. Gradients add up in the order of
/// places; of a group without members it is zero.
class Spread final : public Node {
 public:
  explicit Spread(Grouping grouping) : grouping_(std::move(grouping)) {}
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  Grouping grouping_;
  std::map<State, std::map<int, Payload>> waiting_;  // gradients, by group and place
};

/// The inverse: the sum over the members of a group, in the order of places. A group has at least one.
class Aggregate final : public Node {
 public:
  explicit Aggregate(Grouping grouping) : grouping_(std::move(grouping)) {}
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  Grouping grouping_;
  std::map<State, std::map<int, Payload>> waiting_;
};

/// Messages made from one; the way back when all have come back. What it makes does not depend on numbers of the
/// payload, so that has gradient zero.
class Flatmap final : public Node {
 public:
  using Expand = std::function<std::vector<std::pair<State, Payload>>(const State&)>;
  explicit Flatmap(Expand expand) : expand_(std::move(expand)) {}
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

 private:
  struct Open {
    State state;
    std::size_t size = 0, missing = 0;
  };
  Expand expand_;
  std::map<int, Open> open_;  // by instance
};

/// Softmax cross-entropy with the label of an instance: the end of the way forward and the begin of the way back.
class Loss final : public Node {
 public:
  explicit Loss(std::function<int(const State&)> label_of) : label_of_(std::move(label_of)) {}
  int outputs() const override { return 0; }
  void forward(int input, const State& state, Payload payload, Outbox& out) override;
  void backward(int output, const State& state, Payload gradient, Outbox& out) override;

  struct Seen {
    double loss = 0;
    bool right = false;
  };
  /// By instance, since the last clear().
  const std::map<int, Seen>& seen() const { return seen_; }
  void clear() { seen_.clear(); }

 private:
  std::function<int(const State&)> label_of_;
  std::map<int, Seen> seen_;
};

}  // namespace trireme::dataflow
