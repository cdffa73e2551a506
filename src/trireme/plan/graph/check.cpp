// What can be wrong with a graph, for graphs that people write and programs derive.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "trireme/plan/graph/graph.h"

namespace trireme::plan::graph {
namespace {

constexpr Index kMostElements = Index{1} << 50;

class GraphCheck {
 public:
  explicit GraphCheck(const Graph& graph) : graph_(graph) {}

  std::vector<std::string> run() {
    check_names();
    for (const Dim& dim : graph_.dims) {
      if (dim.size < 1 || dim.size > kMostElements) say("dimension {} has size {}", dim.name, dim.size);
    }
    for (const Tensor& tensor : graph_.tensors) check_tensor(tensor);
    if (!problems_.empty()) return std::move(problems_);
    made_.assign(graph_.tensors.size(), false);
    for (std::size_t i = 0; i < graph_.tensors.size(); ++i) made_[i] = graph_.tensors[i].role != Role::kActivation;
    for (std::size_t i = 0; i < graph_.ops.size(); ++i) {
      check_order(graph_.ops[i], i);
      if (problems_.empty()) check_op(graph_.ops[i]);
      if (problems_.empty()) check_repeated(graph_.ops[i]);
      if (!problems_.empty()) return std::move(problems_);
    }
    return std::move(problems_);
  }

 private:
  template <typename... Values>
  void say(fmt::format_string<Values...> format, Values&&... values) {
    problems_.push_back(fmt::format(format, std::forward<Values>(values)...));
  }

  /// A tensor that is read twice lies in one way: queries that are also keys would have to be split and whole.
  void check_repeated(const Op& op) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const auto first = static_cast<std::size_t>(std::ranges::find(op.inputs, op.inputs[i]) - op.inputs.begin());
      if (first == i || op.part == Part::kBackward) continue;
      const IterationSpace space = iteration_space(graph_, op);
      if (space.inputs[first] != space.inputs[i])
        say("operator {} ({}) reads {} in two ways: give it a reshape of one of them", op.name, name_of(op.kind),
            graph_.tensor(op.inputs[i]).name);
    }
  }

  template <typename Items>
  void check_unique(const Items& items, std::string_view what) {
    std::unordered_set<std::string_view> seen;
    for (const auto& item : items) {
      if (!seen.insert(item.name).second) say("two {}s are named {}", what, item.name);
    }
  }
  void check_names() {
    check_unique(graph_.dims, "dimension");
    check_unique(graph_.tensors, "tensor");
    check_unique(graph_.ops, "operator");
  }

  void check_tensor(const Tensor& tensor) {
    double elements = 1;
    for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
      if (tensor.dims[i] < 0 || tensor.dims[i] >= static_cast<int>(graph_.dims.size())) {
        return say("tensor {} has a dimension that is not there", tensor.name);
      }
      for (std::size_t j = 0; j < i; ++j) {
        if (tensor.dims[i] == tensor.dims[j])
          say("tensor {} has dimension {} twice", tensor.name, graph_.dims[std::size_t(tensor.dims[i])].name);
      }
      elements *= static_cast<double>(graph_.size(tensor.dims[i]));
    }
    if (elements > static_cast<double>(kMostElements)) say("tensor {} has {:.3g} elements", tensor.name, elements);
    if (tensor.grad_of < -1 || tensor.grad_of >= static_cast<int>(graph_.tensors.size()))
      return say("tensor {} is the gradient of a tensor that is not there", tensor.name);
    if (tensor.grad_of >= 0 && graph_.tensor(tensor.grad_of).dims != tensor.dims)
      say("tensor {} and {}, whose gradient it is, differ in their dimensions", tensor.name,
          graph_.tensor(tensor.grad_of).name);
  }

  void check_order(const Op& op, std::size_t place) {
    for (const int input : op.inputs) {
      if (!made_[static_cast<std::size_t>(input)])
        say("operator {} reads {}, which nothing before it makes", op.name, graph_.tensor(input).name);
    }
    for (const int tensor : op.outputs) {
      if (made_[static_cast<std::size_t>(tensor)])
        say("operator {} makes {}, which is there already", op.name, graph_.tensor(tensor).name);
      made_[static_cast<std::size_t>(tensor)] = true;
    }
    if (op.forward >= static_cast<int>(place)) say("operator {} is derived from one that comes after it", op.name);
  }

  bool has_operands(const Op& op, std::size_t least, std::size_t most, std::size_t outputs) {
    if (op.inputs.size() >= least && op.inputs.size() <= most && op.outputs.size() == outputs) return true;
    say("operator {} ({}) has {} inputs and {} outputs", op.name, name_of(op.kind), op.inputs.size(),
        op.outputs.size());
    return false;
  }
  bool has_rank(const Op& op, int tensor, std::size_t rank) {
    if (graph_.tensor(tensor).dims.size() == rank) return true;
    say("operator {} ({}): {} has {} dimensions where {} are needed", op.name, name_of(op.kind),
        graph_.tensor(tensor).name, graph_.tensor(tensor).dims.size(), rank);
    return false;
  }
  bool contains(int tensor, int dim) const {
    return std::ranges::find(graph_.tensor(tensor).dims, dim) != graph_.tensor(tensor).dims.end();
  }
  /// Every dimension of `part` is one of `whole`.
  bool is_within(const Op& op, int part, int whole) {
    for (const int dim : graph_.tensor(part).dims) {
      if (contains(whole, dim)) continue;
      say("operator {}: {} has dimension {}, which {} does not have", op.name, graph_.tensor(part).name,
          graph_.dims[static_cast<std::size_t>(dim)].name, graph_.tensor(whole).name);
      return false;
    }
    return true;
  }

  void check_op(const Op& op) {
    const auto functions = functions_of(op.kind);
    const bool may_lack = functions.empty() || op.kind == OpKind::kEinsum;
    if (!(op.function.empty() && may_lack) && std::ranges::find(functions, op.function) == functions.end())
      return say("operator {} ({}) has the unknown function \"{}\"", op.name, name_of(op.kind), op.function);
    if (op.part == Part::kBackward) return check_backward(op);
    if (op.part != Part::kForward && op.kind != OpKind::kConvolution)
      return say("operator {}: only convolutions have the part {}", op.name, name_of(op.part));
    if (op.bias && op.kind != OpKind::kEinsum && op.kind != OpKind::kConvolution)
      return say("operator {}: {} has no bias", op.name, name_of(op.kind));
    if (op.base != 0 && op.kind != OpKind::kRotary)
      return say("operator {}: {} has no base", op.name, name_of(op.kind));
    if (op.reach != 0 && op.kind != OpKind::kAttention)
      return say("operator {}: {} has no reach", op.name, name_of(op.kind));
    check_kind(op);
  }

  void check_kind(const Op& op) {
    switch (op.kind) {
      case OpKind::kEinsum:
        if (has_operands(op, op.bias ? 2 : 1, 8, 1) && op.bias) is_within(op, op.inputs.back(), op.outputs[0]);
        return;
      case OpKind::kElementwise:
        if (!has_operands(op, 1, 4096, 1)) return;  // the gradient of a weight that all steps share is a long sum
        for (const int input : op.inputs) is_within(op, input, op.outputs[0]);
        return;
      case OpKind::kConvolution:
      case OpKind::kPooling:
        return check_windows(op);
      case OpKind::kNorm:
        if (!has_operands(op, op.function == "rms" ? 2 : 3, op.function == "rms" ? 2 : 3, 1)) return;
        for (const int input : op.inputs) is_within(op, input, op.outputs[0]);
        is_within(op, op.outputs[0], op.inputs[0]);
        return check_dims(op, op.inputs[0]);
      case OpKind::kGather:
        if (has_operands(op, 2, 2, 1)) has_rank(op, op.inputs[0], 2);
        return;
      case OpKind::kLstmCell:
        return check_lstm(op);
      case OpKind::kAttention:
        return check_attention(op);
      case OpKind::kRotary:
        return check_rotary(op);
      case OpKind::kRouter:
        if (has_operands(op, 1, 1, 1) && has_rank(op, op.inputs[0], 3)) is_within(op, op.inputs[0], op.outputs[0]);
        return;
      case OpKind::kSoftmaxLoss:
        if (!has_operands(op, 2, 2, 1) || !is_within(op, op.inputs[1], op.inputs[0])) return;
        has_rank(op, op.outputs[0], 0);
        return check_dims(op, op.inputs[0]);
      case OpKind::kConcat:
      case OpKind::kSplit:
        return check_concat(op);
      case OpKind::kReshape:
        return check_reshape(op);
    }
  }

  void check_attention(const Op& op) {
    if (!has_operands(op, 3, 3, 1)) return;
    const auto &queries = graph_.tensor(op.inputs[0]).dims, &keys = graph_.tensor(op.inputs[1]).dims;
    if (queries.size() != 5 && !has_rank(op, op.inputs[0], 4)) return;
    if (!has_rank(op, op.inputs[1], 4) || !has_rank(op, op.inputs[2], 4)) return;
    if (queries != graph_.tensor(op.outputs[0]).dims)
      return say("operator {}: queries and output differ in their dimensions", op.name);
    if (keys != graph_.tensor(op.inputs[2]).dims)
      return say("operator {}: keys and values differ in their dimensions", op.name);
    if (keys[0] != queries[0] || keys[2] != queries[2] || graph_.size(keys[3]) != graph_.size(queries.back()))
      return say("operator {}: queries and keys differ in their samples, heads or units", op.name);
    if (op.reach < 0 || (op.reach > 0 && op.function != "causal"))
      say("operator {}: reach is a number of keys, of causal attention", op.name);
  }

  void check_rotary(const Op& op) {
    if (!has_operands(op, 1, 1, 1)) return;
    const auto& dims = graph_.tensor(op.inputs[0]).dims;
    if (dims != graph_.tensor(op.outputs[0]).dims)
      return say("operator {}: input and output differ in their dimensions", op.name);
    if (op.dims.size() != 2 || !contains(op.inputs[0], op.dims[0]) || dims.back() != op.dims[1] ||
        op.dims[0] == op.dims[1])
      return say("operator {}: dims names the positions and then the last dimension, which is turned", op.name);
    if (graph_.size(op.dims[1]) % 2 != 0)
      return say("operator {}: {} numbers are not pairs", op.name, graph_.size(op.dims[1]));
    if (!(op.base > 1) || op.base > 1e15) say("operator {}: base {} is no number above 1", op.name, op.base);
  }

  void check_dims(const Op& op, int tensor) {
    if (op.dims.empty()) say("operator {} ({}) names no dimension", op.name, name_of(op.kind));
    for (const int dim : op.dims) {
      if (!contains(tensor, dim))
        say("operator {}: {} has no dimension {}", op.name, graph_.tensor(tensor).name,
            graph_.dims[static_cast<std::size_t>(dim)].name);
    }
  }

  void check_backward(const Op& op) {
    if (op.forward < 0) return say("operator {} is a backward part and names no forward operator", op.name);
    const Op& forward = graph_.op(op.forward);
    if (forward.part != Part::kForward || forward.kind != op.kind)
      return say("operator {} cannot be the gradient of {}", op.name, forward.name);
    const auto has = [&](int tensor) {
      return tensor >= 0 && (std::ranges::find(forward.inputs, tensor) != forward.inputs.end() ||
                             std::ranges::find(forward.outputs, tensor) != forward.outputs.end());
    };
    for (const auto& operands : {op.inputs, op.outputs}) {
      for (const int tensor : operands) {
        if (!has(tensor) && !has(graph_.tensor(tensor).grad_of))
          say("operator {} has {}, which is neither an operand of {} nor a gradient of one", op.name,
              graph_.tensor(tensor).name, forward.name);
      }
    }
  }

  void check_windows(const Op& op) {
    const bool is_pooling = op.kind == OpKind::kPooling;
    if (!has_operands(op, is_pooling ? 1 : 2 + (op.bias ? 1 : 0), is_pooling ? 1 : 2 + (op.bias ? 1 : 0), 1)) return;
    for (const Window& window : op.windows) {
      if (window.kernel < 1 || window.stride < 1 || window.dilation < 1 || window.padding < 0 ||
          window.kernel > kMostElements || window.stride > kMostElements || window.padding > kMostElements ||
          window.dilation > 1024)
        return say("operator {} has an impossible window", op.name);
      if (!is_pooling && (window.kernel_dim < 0 || graph_.size(window.kernel_dim) != window.kernel))
        return say("operator {}: a kernel of {} has no dimension of that size", op.name, window.kernel);
      const Index reach = graph_.size(window.in) + 2 * window.padding - (window.kernel - 1) * window.dilation - 1;
      if (reach < 0 || reach / window.stride + 1 != graph_.size(window.out))
        return say("operator {}: its window makes {} rows of {}, not {}", op.name,
                   reach < 0 ? 0 : reach / window.stride + 1, graph_.size(window.in), graph_.size(window.out));
    }
    for (std::size_t i = 0; i < op.windows.size(); ++i) {
      const Window& window = op.windows[i];
      for (std::size_t j = 0; j < i; ++j) {
        const Window& other = op.windows[j];
        if (window.in == other.in || window.out == other.out || window.in == other.out || window.out == other.in)
          return say("operator {}: two windows on one dimension", op.name);
      }
    }
    check_window_operands(op);
  }

  /// [n, c, rows...], and a weight [c of the output, c of the input, kernels...]; the data and weight gradients
  /// likewise.
  void check_window_operands(const Op& op) {
    const std::size_t rank = 2 + op.windows.size();
    const bool is_data = op.part == Part::kBackwardData, is_weight = op.part == Part::kBackwardWeight;
    const int small = is_data ? op.inputs[0] : is_weight ? op.inputs[1] : op.outputs[0];
    const int large = is_data ? op.outputs[0] : op.inputs[0];
    if (!has_rank(op, small, rank) || !has_rank(op, large, rank)) return;
    const auto &small_dims = graph_.tensor(small).dims, &large_dims = graph_.tensor(large).dims;
    if (small_dims[0] != large_dims[0]) return say("operator {}: input and output differ in their samples", op.name);
    for (std::size_t i = 0; i < op.windows.size(); ++i) {
      if (large_dims[i + 2] != op.windows[i].in || small_dims[i + 2] != op.windows[i].out)
        return say("operator {}: window {} is not on dimension {} of its input and output", op.name, i, i + 2);
    }
    if (op.kind == OpKind::kPooling) {
      if (small_dims[1] != large_dims[1]) say("operator {}: pooling keeps channels", op.name);
      return;
    }
    const int weight = is_weight ? op.outputs[0] : op.inputs[1];
    if (!has_rank(op, weight, rank)) return;
    const auto& weight_dims = graph_.tensor(weight).dims;
    if (weight_dims[0] != small_dims[1] || weight_dims[1] != large_dims[1])
      return say("operator {}: the channels of {} are not those of input and output", op.name,
                 graph_.tensor(weight).name);
    for (std::size_t i = 0; i < op.windows.size(); ++i) {
      if (weight_dims[i + 2] != op.windows[i].kernel_dim)
        return say("operator {}: {} does not have the kernel's dimensions", op.name, graph_.tensor(weight).name);
    }
    if (op.bias) is_within(op, op.inputs.back(), op.outputs[0]);
  }

  void check_lstm(const Op& op) {
    if (!has_operands(op, 6, 6, 2)) return;
    for (const int i : {0, 1, 2}) {
      if (!has_rank(op, op.inputs[static_cast<std::size_t>(i)], 2)) return;
    }
    if (!has_rank(op, op.inputs[3], 3) || !has_rank(op, op.inputs[4], 3) || !has_rank(op, op.inputs[5], 2)) return;
    const auto& state = graph_.tensor(op.inputs[1]).dims;
    for (const int tensor : {op.inputs[2], op.outputs[0], op.outputs[1]}) {
      if (graph_.tensor(tensor).dims != state)
        return say("operator {}: {} does not have the state's dimensions", op.name, graph_.tensor(tensor).name);
    }
    const auto &x = graph_.tensor(op.inputs[0]).dims, &wx = graph_.tensor(op.inputs[3]).dims,
               &wh = graph_.tensor(op.inputs[4]).dims, &bias = graph_.tensor(op.inputs[5]).dims;
    const bool fits = x[0] == state[0] && wx[0] == x[1] && wx[2] == state[1] && wh[2] == state[1] && wh[1] == wx[1] &&
                      bias[0] == wx[1] && bias[1] == state[1] && graph_.size(wx[1]) == 4 &&
                      graph_.size(wh[0]) == graph_.size(state[1]);
    if (!fits) say("operator {}: the weights of the cell do not fit its input and state", op.name);
  }

  void check_concat(const Op& op) {
    const bool joins = op.kind == OpKind::kConcat;
    if (joins ? !has_operands(op, 1, 256, 1) : !has_operands(op, 1, 1, op.outputs.size())) return;
    if (op.dims.size() != 1) return say("operator {} names {} dimensions, not one", op.name, op.dims.size());
    const int whole = joins ? op.outputs[0] : op.inputs[0];
    const auto& dims = graph_.tensor(whole).dims;
    const auto place = std::ranges::find(dims, op.dims[0]);
    if (place == dims.end()) return check_dims(op, whole);
    Index sum = 0;
    for (const int part : joins ? op.inputs : op.outputs) {
      if (!has_rank(op, part, dims.size())) return;
      const auto& others = graph_.tensor(part).dims;
      for (std::size_t i = 0; i < dims.size(); ++i) {
        if (dims[i] != op.dims[0] && dims[i] != others[i])
          return say("operator {}: {} differs in more than one dimension", op.name, graph_.tensor(part).name);
      }
      sum += graph_.size(others[static_cast<std::size_t>(place - dims.begin())]);
    }
    if (sum != graph_.size(op.dims[0]))
      say("operator {}: parts of {} make {}, not {}", op.name, sum, sum, graph_.size(op.dims[0]));
  }

  void check_reshape(const Op& op) {
    if (!has_operands(op, 1, 1, 1)) return;
    std::vector<int> wanted;
    for (const int dim : graph_.tensor(op.inputs[0]).dims) {
      const auto group = std::ranges::find_if(
          op.regroups, [&](const Regroup& r) { return std::ranges::find(r.from, dim) != r.from.end(); });
      if (group == op.regroups.end()) wanted.push_back(dim);
      if (group != op.regroups.end() && group->from.front() == dim)
        wanted.insert(wanted.end(), group->to.begin(), group->to.end());
    }
    if (wanted != graph_.tensor(op.outputs[0]).dims)
      return say("operator {}: the output is not the input with its dimensions regrouped", op.name);
    for (const Regroup& regroup : op.regroups) {
      if (regroup.from.empty() || regroup.to.empty()) return say("operator {} regroups nothing", op.name);
      double from = 1, to = 1;
      for (const int dim : regroup.from) from *= static_cast<double>(graph_.size(dim));
      for (const int dim : regroup.to) to *= static_cast<double>(graph_.size(dim));
      if (from != to) say("operator {} makes {} elements out of {}", op.name, to, from);
      const auto& dims = graph_.tensor(op.inputs[0]).dims;
      const auto place = std::ranges::search(dims, regroup.from);
      if (place.empty()) say("operator {}: dimensions that are regrouped lie one after the other", op.name);
    }
  }

  const Graph& graph_;
  std::vector<bool> made_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> find_problems(const Graph& graph) { return GraphCheck(graph).run(); }

}  // namespace trireme::plan::graph
