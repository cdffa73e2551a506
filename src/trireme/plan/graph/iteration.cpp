#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/plan/graph/graph.h"

namespace trireme::plan::graph {
namespace {

/// Collects the dimensions of one operator. A dimension that was named before keeps its kind.
class SpaceBuilder {
 public:
  explicit SpaceBuilder(const Graph& graph) : graph_(graph) {}

  int add(int dim, DimKind kind, int window = -1) {
    for (std::size_t i = 0; i < space_.dims.size(); ++i) {
      if (space_.dims[i].dim == dim) return static_cast<int>(i);
    }
    space_.dims.push_back({dim, graph_.size(dim), kind, window});
    return static_cast<int>(space_.dims.size()) - 1;
  }
  /// One that has no other operand: it never meets a dimension of the same name.
  int add_whole(int dim) {
    space_.dims.push_back({dim, graph_.size(dim), DimKind::kWhole, -1});
    return static_cast<int>(space_.dims.size()) - 1;
  }
  std::vector<int> by_name(const Tensor& tensor, DimKind kind) {
    std::vector<int> places;
    for (const int dim : tensor.dims) places.push_back(add(dim, kind));
    return places;
  }
  void limit(int place, Index size) {
    auto& dim = space_.dims[static_cast<std::size_t>(place)];
    dim.size = std::gcd(dim.size, size);
  }
  IterationSpace& space() { return space_; }

 private:
  const Graph& graph_;
  IterationSpace space_;
};

/// Outputs first: what is left is reduced.
IterationSpace space_by_name(const Graph& graph, const Op& op, DimKind rest = DimKind::kReduced) {
  SpaceBuilder builder(graph);
  for (const int output : op.outputs)
    builder.space().outputs.push_back(builder.by_name(graph.tensor(output), DimKind::kOutput));
  for (const int input : op.inputs) builder.space().inputs.push_back(builder.by_name(graph.tensor(input), rest));
  return std::move(builder.space());
}

const Window* window_with(const Op& op, int dim, int& index) {
  for (std::size_t i = 0; i < op.windows.size(); ++i) {
    const Window& window = op.windows[i];
    if (window.in == dim || window.out == dim) {
      index = static_cast<int>(i);
      return &window;
    }
  }
  return nullptr;
}

/// Convolutions and pooling of every part: a window's input and output are one dimension, named by the output. Both
/// must be divisible by a split, and a split's rows must reach no farther than the neighbours'.
IterationSpace windowed_space(const Graph& graph, const Op& op) {
  SpaceBuilder builder(graph);
  const auto places_of = [&](int tensor, DimKind kind) {
    std::vector<int> places;
    for (const int dim : graph.tensor(tensor).dims) {
      int index = -1;
      const Window* window = window_with(op, dim, index);
      const bool is_kernel = std::ranges::any_of(op.windows, [&](const Window& w) { return w.kernel_dim == dim; });
      if (is_kernel) {
        places.push_back(builder.add(dim, DimKind::kWhole));
      } else if (window) {
        const int place = builder.add(window->out, DimKind::kWindowed, index);
        builder.limit(place, graph.size(window->in));
        places.push_back(place);
      } else {
        places.push_back(builder.add(dim, kind));
      }
    }
    return places;
  };
  for (const int output : op.outputs) builder.space().outputs.push_back(places_of(output, DimKind::kOutput));
  for (const int input : op.inputs) builder.space().inputs.push_back(places_of(input, DimKind::kReduced));
  return std::move(builder.space());
}

IterationSpace norm_space(const Graph& graph, const Op& op) {
  IterationSpace space = space_by_name(graph, op, DimKind::kOutput);
  for (IterationDim& dim : space.dims) {
    const bool averaged = std::ranges::find(op.dims, dim.dim) != op.dims.end();
    if (averaged && op.function != "local-batch") dim.kind = DimKind::kStatistic;
  }
  return space;
}

/// Gates are made of all of x and h, and nothing of them is linear in a part: only batch and hidden units are split.
IterationSpace lstm_space(const Graph& graph, const Op& op) {
  SpaceBuilder builder(graph);
  const Tensor& hidden = graph.tensor(op.outputs[0]);
  const int batch = builder.add(hidden.dims[0], DimKind::kOutput),
            units = builder.add(hidden.dims[1], DimKind::kOutput);
  const int gates = builder.add_whole(graph.tensor(op.inputs[3]).dims[1]);
  const int in = builder.add_whole(graph.tensor(op.inputs[0]).dims[1]);
  const int recurrent = builder.add_whole(graph.tensor(op.inputs[4]).dims[0]);
  builder.space().outputs = {{batch, units}, {batch, units}};
  builder.space().inputs = {{batch, in},        {batch, recurrent},        {batch, units},
                            {in, gates, units}, {recurrent, gates, units}, {gates, units}};
  return std::move(builder.space());
}

/// Queries and heads are split; each query needs every key. Where groups of queries share a head's keys and values, a
/// split of the group leaves these whole, and their gradients are partial sums.
IterationSpace attention_space(const Graph& graph, const Op& op) {
  SpaceBuilder builder(graph);
  const std::vector<int>& dims = graph.tensor(op.outputs[0]).dims;
  std::vector<int> places;
  for (std::size_t i = 0; i + 1 < dims.size(); ++i) places.push_back(builder.add(dims[i], DimKind::kOutput));
  const int units = builder.add_whole(dims.back());
  places.push_back(units);
  const int keys = builder.add_whole(graph.tensor(op.inputs[1]).dims[1]);
  builder.space().outputs = {places};
  const std::vector<int> shared{places[0], keys, places[2], units};
  builder.space().inputs = {places, shared, shared};
  return std::move(builder.space());
}

/// Both halves of a pair are turned together; an element's angle follows from its position in the whole.
IterationSpace rotary_space(const Graph& graph, const Op& op) {
  IterationSpace space = space_by_name(graph, op, DimKind::kOutput);
  for (IterationDim& dim : space.dims) {
    if (dim.dim == op.dims[1]) dim.kind = DimKind::kWhole;
  }
  return space;
}

/// Which slot of an expert a token gets depends on all tokens of its group.
IterationSpace router_space(const Graph& graph, const Op& op) {
  IterationSpace space = space_by_name(graph, op);
  const int group = graph.tensor(op.inputs[0]).dims[0];
  for (IterationDim& dim : space.dims) {
    if (dim.dim != group) dim.kind = DimKind::kWhole;
  }
  return space;
}

IterationSpace loss_space(const Graph& graph, const Op& op) {
  IterationSpace space = space_by_name(graph, op, DimKind::kReduced);
  for (IterationDim& dim : space.dims) {
    const bool averaged = std::ranges::find(op.dims, dim.dim) != op.dims.end();
    if (averaged && op.function != "local-batch") dim.kind = DimKind::kStatistic;
  }
  return space;
}

/// The dimension that is joined or cut stays whole on every operand.
IterationSpace concat_space(const Graph& graph, const Op& op) {
  const auto& many = op.kind == OpKind::kConcat ? op.inputs : op.outputs;
  const Tensor& whole = graph.tensor(op.kind == OpKind::kConcat ? op.outputs[0] : op.inputs[0]);
  IterationSpace space = space_by_name(graph, op, DimKind::kOutput);
  for (IterationDim& dim : space.dims) {
    if (dim.dim == op.dims[0]) dim.kind = DimKind::kWhole;
    for (const int tensor : many) {
      const auto& dims = graph.tensor(tensor).dims;
      if (std::ranges::find(dims, dim.dim) != dims.end() && std::ranges::find(whole.dims, dim.dim) == whole.dims.end())
        dim.kind = DimKind::kWhole;
    }
  }
  return space;
}

/// Rows stay rows: of each regrouped run, its first dimension can be split on both sides at once.
IterationSpace reshape_space(const Graph& graph, const Op& op) {
  SpaceBuilder builder(graph);
  const auto places_of = [&](int tensor) {
    std::vector<int> places;
    for (const int dim : graph.tensor(tensor).dims) {
      int place = -1;
      for (const Regroup& regroup : op.regroups) {
        const bool first = dim == regroup.from.front() || dim == regroup.to.front();
        const bool later = std::ranges::find(regroup.from, dim) != regroup.from.end() ||
                           std::ranges::find(regroup.to, dim) != regroup.to.end();
        if (first) {
          place = builder.add(regroup.to.front(), DimKind::kOutput);
          builder.limit(place, graph.size(regroup.from.front()));
        } else if (later) {
          place = builder.add(dim, DimKind::kWhole);
        }
      }
      places.push_back(place >= 0 ? place : builder.add(dim, DimKind::kOutput));
    }
    return places;
  };
  builder.space().outputs = {places_of(op.outputs[0])};
  builder.space().inputs = {places_of(op.inputs[0])};
  return std::move(builder.space());
}

IterationSpace forward_space(const Graph& graph, const Op& op) {
  switch (op.kind) {
    case OpKind::kEinsum:
    case OpKind::kElementwise:
    case OpKind::kGather:
      return space_by_name(graph, op);
    case OpKind::kConvolution:
    case OpKind::kPooling:
      return windowed_space(graph, op);
    case OpKind::kNorm:
      return norm_space(graph, op);
    case OpKind::kLstmCell:
      return lstm_space(graph, op);
    case OpKind::kAttention:
      return attention_space(graph, op);
    case OpKind::kRotary:
      return rotary_space(graph, op);
    case OpKind::kRouter:
      return router_space(graph, op);
    case OpKind::kSoftmaxLoss:
      return loss_space(graph, op);
    case OpKind::kConcat:
    case OpKind::kSplit:
      return concat_space(graph, op);
    case OpKind::kReshape:
      return reshape_space(graph, op);
  }
  return {};
}

/// A gradient lies as its tensor does, so the operator that makes it has the places of the forward one.
IterationSpace backward_space(const Graph& graph, const Op& op) {
  const Op& forward = graph.op(op.forward);
  const IterationSpace from = iteration_space(graph, forward);
  IterationSpace space{.dims = from.dims, .inputs = {}, .outputs = {}};
  const auto places_of = [&](int operand) -> std::vector<int> {
    const int grad_of = graph.tensor(operand).grad_of;
    for (const int tensor : {operand, grad_of}) {
      for (std::size_t i = 0; i < forward.outputs.size(); ++i) {
        if (forward.outputs[i] == tensor) return from.outputs[i];
      }
      for (std::size_t i = 0; i < forward.inputs.size(); ++i) {
        if (forward.inputs[i] == tensor) return from.inputs[i];
      }
    }
    throw InternalError("operator " + op.name + " has an operand that " + forward.name + " does not have");
  };
  for (const int input : op.inputs) space.inputs.push_back(places_of(input));
  for (const int output : op.outputs) space.outputs.push_back(places_of(output));
  return space;
}

}  // namespace

IterationSpace iteration_space(const Graph& graph, const Op& op) {
  return op.part == Part::kBackward ? backward_space(graph, op) : forward_space(graph, op);
}

int IterationSpace::find(int dim) const {
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i].dim == dim && dims[i].kind != DimKind::kWhole) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace trireme::plan::graph
