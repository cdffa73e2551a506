#include "trireme/plan/graph/search/baselines.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/plan/graph/annotate.h"

namespace trireme::plan::graph {
namespace {

/// As many axes as go, outermost first, along one dimension. Gradient operators must be able to take it too.
void split_along(const Graph& both, Strategy& strategy, std::size_t op, int dim) {
  if (dim < 0 || iteration_space(both, both.ops[op]).find(dim) < 0) return;
  Split& split = strategy.splits[op];
  for (int& at : split) {
    if (at >= 0) continue;
    at = dim;
    bool works = true;
    for (std::size_t i = 0; i < both.ops.size() && works; ++i) {
      if (i == op || both.ops[i].forward == static_cast<int>(op))
        works = why_not(both, strategy.mesh, both.ops[i], iteration_space(both, both.ops[i]), split).empty();
    }
    if (!works) at = -1;
  }
}

/// The split of an earlier operator with a parameter of this one: both must lie alike. -1 where there is none.
int dim_of_shared(const Graph& both, const Uses& uses, const Strategy& strategy, std::size_t op) {
  for (const int input : both.ops[op].inputs) {
    if (both.tensor(input).role != Role::kParameter) continue;
    const int first = uses.consumers[static_cast<std::size_t>(input)][0];
    if (first < static_cast<int>(op) && !strategy.splits[std::size_t(first)].empty())
      return strategy.splits[static_cast<std::size_t>(first)][0];
  }
  return -1;
}

std::size_t forward_count(const Graph& both) {
  return static_cast<std::size_t>(std::ranges::count_if(both.ops, [](const Op& op) { return op.forward < 0; }));
}

/// The outputs of an operator's weight, or of the operator whose output it changes; -1 where there is none.
int channel_dim(const Graph& both, const Op& op) {
  const bool has_weight =
      std::ranges::any_of(op.inputs, [&](int i) { return both.tensor(i).role == Role::kParameter; });
  if (!has_weight) return -1;
  switch (op.kind) {
    case OpKind::kConvolution:
      return both.tensor(op.outputs[0]).dims[1];
    case OpKind::kNorm:
      return is_batch_norm(op) ? both.tensor(op.outputs[0]).dims[1] : -1;
    case OpKind::kEinsum:
    case OpKind::kGather:
      return both.tensor(op.outputs[0]).dims.back();
    case OpKind::kLstmCell:
      return both.tensor(op.outputs[0]).dims[1];
    default:
      return -1;
  }
}

}  // namespace

int sample_dim(const Graph& forward) {
  for (const Tensor& tensor : forward.tensors) {
    if (tensor.role == Role::kInput && !tensor.dims.empty()) return tensor.dims[0];
  }
  throw ConfigError("graph " + forward.name + " has no input", "give it one");
}

Strategy data_parallel(const Graph& both, const layout::Mesh& mesh) {
  Strategy strategy = replicated(both, mesh);
  const int samples = sample_dim(both);
  for (std::size_t i = 0; i < strategy.splits.size(); ++i) split_along(both, strategy, i, samples);
  return strategy;
}

Strategy model_parallel(const Graph& both, const layout::Mesh& mesh) {
  Strategy strategy = replicated(both, mesh);
  const Uses uses = uses_of(both);
  for (std::size_t i = 0; i < strategy.splits.size(); ++i) {
    int dim = dim_of_shared(both, uses, strategy, i);
    if (dim < 0) dim = channel_dim(both, both.ops[i]);
    for (const int input : both.ops[i].inputs) {
      const int from = uses.producer[static_cast<std::size_t>(input)];
      if (dim >= 0 || from < 0) continue;
      const auto& made = strategy.splits[static_cast<std::size_t>(from)];
      if (!made.empty()) dim = made[0];
    }
    split_along(both, strategy, i, dim);
  }
  return strategy;
}

Strategy one_weird_trick(const Graph& both, const layout::Mesh& mesh) {
  Strategy strategy = replicated(both, mesh);
  const int samples = sample_dim(both);
  const Uses uses = uses_of(both);
  bool connected = false;  // an activation after a fully connected layer stays split as that is
  for (std::size_t i = 0; i < strategy.splits.size(); ++i) {
    const Op& op = both.ops[i];
    int dim = samples;
    if (op.kind == OpKind::kEinsum && channel_dim(both, op) >= 0) {
      const int shared = dim_of_shared(both, uses, strategy, i);
      dim = shared >= 0 ? shared : channel_dim(both, op);
      connected = true;
    } else if (connected && (op.kind == OpKind::kElementwise || op.kind == OpKind::kSoftmaxLoss)) {
      const int from = uses.producer[static_cast<std::size_t>(op.inputs[0])];
      if (from >= 0)
        dim = strategy.splits[static_cast<std::size_t>(from)].empty()
                  ? samples
                  : strategy.splits[static_cast<std::size_t>(from)][0];
    }
    split_along(both, strategy, i, dim);
  }
  return strategy;
}

std::optional<Strategy> megatron(const Graph& both, const layout::Mesh& mesh, int devices_per_node) {
  const int samples = sample_dim(both);
  std::vector<int> inner;
  for (const char* name : {"heads", "ffn", "vocab", "experts"}) {
    if (const int dim = both.find_dim(name); dim >= 0) inner.push_back(dim);
  }
  if (both.find_dim("heads") < 0) return std::nullopt;
  Strategy strategy = replicated(both, mesh);
  int tensor_parallel = 1;
  std::size_t first = mesh.axes().size();
  while (first > 0 && tensor_parallel * mesh.axes()[first - 1].size <= devices_per_node)
    tensor_parallel *= mesh.axes()[--first].size;
  for (std::size_t i = 0; i < forward_count(both); ++i) {
    const IterationSpace space = iteration_space(both, both.ops[i]);
    for (std::size_t axis = 0; axis < mesh.axes().size(); ++axis) {
      int& at = strategy.splits[i][axis];
      for (const int dim : axis < first ? std::vector<int>{samples} : inner) {
        if (at >= 0 || space.find(dim) < 0) continue;
        at = dim;
        if (!why_not(both, mesh, both.ops[i], space, strategy.splits[i]).empty()) at = -1;
      }
    }
  }
  return strategy;
}

Strategy tensor_and_data_parallel(const Graph& both, const layout::Mesh& mesh, int tensor) {
  if (auto strategy = megatron(both, mesh, tensor)) return std::move(*strategy);
  const int samples = sample_dim(both);
  const Uses uses = uses_of(both);
  std::size_t first = mesh.axes().size();
  for (int product = 1; first > 0 && product < tensor;) product *= mesh.axes()[--first].size;
  Strategy strategy = replicated(both, mesh);
  std::vector<int> inner(strategy.splits.size(), -1);  // what the last axes split
  for (std::size_t i = 0; i < strategy.splits.size(); ++i) {
    const int shared = dim_of_shared(both, uses, strategy, i);
    inner[i] = shared >= 0 && shared != samples ? shared : channel_dim(both, both.ops[i]);
    for (const int input : both.ops[i].inputs) {
      const int from = uses.producer[static_cast<std::size_t>(input)];
      if (inner[i] < 0 && from >= 0) inner[i] = inner[static_cast<std::size_t>(from)];
    }
    const IterationSpace space = iteration_space(both, both.ops[i]);
    for (std::size_t axis = 0; axis < mesh.axes().size(); ++axis) {
      const int dim = axis < first ? samples : inner[i];
      if (dim < 0 || space.find(dim) < 0) continue;
      Split& split = strategy.splits[i];
      split[axis] = dim;
      bool works = true;
      for (std::size_t k = 0; k < both.ops.size() && works; ++k) {
        if (k == i || both.ops[k].forward == static_cast<int>(i))
          works = why_not(both, mesh, both.ops[k], iteration_space(both, both.ops[k]), split).empty();
      }
      if (!works) split[axis] = -1;
    }
  }
  return strategy;
}

}  // namespace trireme::plan::graph
