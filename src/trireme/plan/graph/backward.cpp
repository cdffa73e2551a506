#include "trireme/plan/graph/backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

class Derivation {
 public:
  explicit Derivation(const Graph& forward) : graph_(forward), uses_(uses_of(forward)), ops_(forward.ops.size()) {
    pieces_.resize(forward.tensors.size());
    trained_.resize(forward.tensors.size());
    for (std::size_t i = 0; i < trained_.size(); ++i) trained_[i] = forward.tensors[i].role == Role::kParameter;
    for (const Op& op : forward.ops) {
      const bool any = std::ranges::any_of(op.inputs, [&](int input) { return is_trained(input); });
      for (const int output : op.outputs) trained_[static_cast<std::size_t>(output)] = any;
    }
  }

  Graph run() {
    for (std::size_t i = ops_; i-- > 0;) derive(static_cast<int>(i));
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (graph_.tensors[i].role == Role::kParameter) sum_pieces(static_cast<int>(i));
    }
    return std::move(graph_);
  }

 private:
  bool is_trained(int tensor) const { return trained_[static_cast<std::size_t>(tensor)]; }
  // By value: what is derived is appended to the vectors these stand in.
  Op op_at(int index) const { return graph_.ops[static_cast<std::size_t>(index)]; }

  /// One more part of the gradient of `tensor`.
  int new_piece(int tensor) {
    auto& pieces = pieces_[static_cast<std::size_t>(tensor)];
    const Tensor of = graph_.tensor(tensor);
    const bool only = uses_.consumers[static_cast<std::size_t>(tensor)].size() <= 1;
    const std::string name = only ? of.name + ".grad" : fmt::format("{}.grad.{}", of.name, pieces.size());
    graph_.tensors.push_back({.name = name, .dims = of.dims, .dtype = of.dtype, .grad_of = tensor});
    pieces.push_back(static_cast<int>(graph_.tensors.size()) - 1);
    return pieces.back();
  }

  /// The whole gradient; -1 where nothing depends on the tensor. The sum is taken where its producer is, a parameter's
  /// where its first reader is.
  int sum_pieces(int tensor) {
    auto& pieces = pieces_[static_cast<std::size_t>(tensor)];
    if (pieces.size() <= 1) return pieces.empty() ? -1 : pieces[0];
    const Tensor of = graph_.tensor(tensor);
    const int producer = uses_.producer[static_cast<std::size_t>(tensor)];
    graph_.tensors.push_back({.name = of.name + ".grad", .dims = of.dims, .dtype = of.dtype, .grad_of = tensor});
    const int sum = static_cast<int>(graph_.tensors.size()) - 1;
    graph_.ops.push_back({.name = of.name + ".grad.sum",
                          .kind = OpKind::kElementwise,
                          .inputs = pieces,
                          .outputs = {sum},
                          .function = "add",
                          .forward = producer >= 0 ? producer : uses_.consumers[static_cast<std::size_t>(tensor)][0]});
    pieces = {sum};
    return sum;
  }

  void derive(int index) {
    const Op op = op_at(index);
    if (!std::ranges::any_of(op.inputs, [&](int input) { return is_trained(input); })) return;
    std::vector<int> gradients;
    for (const int output : op.outputs) {
      const int gradient = sum_pieces(output);
      if (gradient >= 0) gradients.push_back(gradient);
    }
    if (gradients.empty() && op.kind != OpKind::kSoftmaxLoss) return;
    switch (op.kind) {
      case OpKind::kEinsum:
        return derive_einsum(op, index, gradients[0]);
      case OpKind::kConvolution:
        return derive_convolution(op, index, gradients[0]);
      default:
        return derive_at_once(op, index, gradients);
    }
  }

  void derive_bias(const Op& op, int index, int gradient) {
    if (!op.bias || !is_trained(op.inputs.back())) return;
    const int piece = new_piece(op.inputs.back());
    graph_.ops.push_back(
        {.name = op.name + ".backward_bias", .inputs = {gradient}, .outputs = {piece}, .forward = index});
  }

  /// The gradient of a factor is the sum of products of the output's gradient and the other factors.
  void derive_einsum(const Op& op, int index, int gradient) {
    const std::size_t factors = op.inputs.size() - (op.bias ? 1 : 0);
    for (std::size_t i = 0; i < factors; ++i) {
      if (!is_trained(op.inputs[i])) continue;
      std::vector<int> inputs{gradient};
      for (std::size_t j = 0; j < factors; ++j) {
        if (j != i) inputs.push_back(op.inputs[j]);
      }
      const int piece = new_piece(op.inputs[i]);
      graph_.ops.push_back({.name = fmt::format("{}.backward_{}", op.name, i),
                            .inputs = inputs,
                            .outputs = {piece},
                            .function = op.function,
                            .forward = index});
    }
    derive_bias(op, index, gradient);
  }

  /// A convolution and its data gradient are each other's gradients.
  void derive_convolution(const Op& op, int index, int gradient) {
    const bool transposed = op.part == Part::kBackwardData;
    const int x = op.inputs[0], weight = op.inputs[1];
    const auto add = [&](const char* ending, Part part, std::vector<int> inputs, int of) {
      const int piece = new_piece(of);
      graph_.ops.push_back({.name = op.name + ending,
                            .kind = OpKind::kConvolution,
                            .part = part,
                            .inputs = std::move(inputs),
                            .outputs = {piece},
                            .windows = op.windows,
                            .forward = index});
    };
    if (is_trained(x)) add(".backward_data", transposed ? Part::kForward : Part::kBackwardData, {gradient, weight}, x);
    if (is_trained(weight)) {
      const std::vector<int> inputs = transposed ? std::vector{gradient, x} : std::vector{x, gradient};
      add(".backward_weight", Part::kBackwardWeight, inputs, weight);
    }
    derive_bias(op, index, gradient);
  }

  /// What of the forward operator its gradients are made of.
  static std::vector<int> saved_by(const Op& op) {
    switch (op.kind) {
      case OpKind::kElementwise:
        if (op.function == "multiply" || op.function == "gelu" || op.function == "silu") return op.inputs;
        if (op.function == "relu" || op.function == "tanh" || op.function == "sigmoid") return op.outputs;
        return {};  // dropout draws its mask again
      case OpKind::kPooling:
        // Which element of a window was the largest, in the output's place: as many bytes, and no doubt between equals.
        return op.function == "max" ? op.outputs : std::vector<int>{};
      case OpKind::kNorm:
        return {op.inputs[0], op.inputs[1]};
      case OpKind::kGather:
        return {op.inputs[1]};
      case OpKind::kLstmCell: {
        std::vector<int> saved = op.inputs;
        saved.push_back(op.outputs[1]);
        return saved;
      }
      case OpKind::kAttention:
        return {op.inputs[0], op.inputs[1], op.inputs[2], op.outputs[0]};
      case OpKind::kRouter:
      case OpKind::kSoftmaxLoss:
        return op.inputs;
      default:
        return {};
    }
  }

  void derive_at_once(const Op& op, int index, const std::vector<int>& gradients) {
    Op backward{.name = op.name + ".backward",
                .kind = op.kind,
                .part = Part::kBackward,
                .inputs = gradients,
                .function = op.function,
                .forward = index};
    for (const int saved : saved_by(op)) {
      if (std::ranges::find(backward.inputs, saved) == backward.inputs.end()) backward.inputs.push_back(saved);
    }
    for (const int input : op.inputs) {
      if (is_trained(input)) backward.outputs.push_back(new_piece(input));
    }
    graph_.ops.push_back(std::move(backward));
  }

  Graph graph_;
  const Uses uses_;
  const std::size_t ops_;
  std::vector<std::vector<int>> pieces_;  // [forward tensor]
  std::vector<bool> trained_;
};

}  // namespace

Graph with_backward(const Graph& forward) {
  const bool has_loss = std::ranges::any_of(
      forward.ops, [](const Op& op) { return op.kind == OpKind::kSoftmaxLoss && op.part == Part::kForward; });
  if (!has_loss)
    throw ConfigError(fmt::format("graph {} has no loss, so there is nothing to differentiate", forward.name),
                      "add an operator of kind loss");
  Graph both = Derivation(forward).run();
  // Names of people may be those that are made here.
  if (const std::vector<std::string> problems = find_problems(both); !problems.empty())
    throw ConfigError(fmt::format("the gradients of graph {} cannot be derived: {}", forward.name, problems.front()),
                      "give tensors and operators names that do not end in .grad or .backward");
  return both;
}

Graph without_backward(const Graph& both) {
  Graph forward = both;
  std::erase_if(forward.ops, [](const Op& op) { return op.forward >= 0; });
  std::erase_if(forward.tensors, [](const Tensor& tensor) { return tensor.grad_of >= 0; });
  return forward;
}

bool makes_weight_gradients(const Graph& both, const Op& op) {
  return op.forward >= 0 && std::ranges::all_of(op.outputs, [&](int output) {
           const int of = both.tensor(output).grad_of;
           return of >= 0 && both.tensor(of).role == Role::kParameter;
         });
}

int gradient_of(const Graph& graph, int tensor) {
  // A sum comes after its parts.
  for (std::size_t i = graph.tensors.size(); i-- > 0;) {
    if (graph.tensors[i].grad_of == tensor) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace trireme::plan::graph
