#include "trireme/plan/graph/count.h"

#include <algorithm>

#include "trireme/cost/roofline.h"

namespace trireme::plan::graph {
namespace {

/// What the space leaves one device of an operand.
double local_operand_bytes(const Graph& graph, int tensor, const std::vector<int>& places,
                           std::span<const int> degrees) {
  double bytes = graph.bytes(graph.tensor(tensor));
  if (degrees.empty()) return bytes;
  for (const int place : places) bytes /= degrees[static_cast<std::size_t>(place)];
  return bytes;
}

/// The product of the sizes of all dimensions, of which the device has its part.
double local_points(const Graph& graph, const IterationSpace& space, std::span<const int> degrees) {
  double points = 1;
  for (std::size_t i = 0; i < space.dims.size(); ++i) {
    points *= static_cast<double>(graph.size(space.dims[i].dim));
    if (!degrees.empty()) points /= degrees[i];
  }
  return points;
}

bool is_alias(const Op& op) {
  return op.kind == OpKind::kReshape ||
         (op.kind == OpKind::kElementwise && op.function == "add" && op.part == Part::kBackward);
}

}  // namespace

Work work_of(const Graph& graph, const Op& op, const IterationSpace& space, std::span<const int> degrees) {
  Work work;
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    work.bytes += local_operand_bytes(graph, op.inputs[i], space.inputs[i], degrees);
  double written = 0;
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    const double bytes = local_operand_bytes(graph, op.outputs[i], space.outputs[i], degrees);
    work.bytes += bytes;
    written += bytes / bytes_of(graph.tensor(op.outputs[i]).dtype);
  }
  const double points = local_points(graph, space, degrees);
  const double passes = op.part == Part::kBackward ? 2 : 1;
  switch (op.kind) {
    case OpKind::kEinsum: {
      const std::size_t factors = op.inputs.size() - (op.bias ? 1 : 0);
      work.flops = static_cast<double>(factors >= 2 ? 2 * (factors - 1) : 1) * points;
      if (factors >= 2) work.unit = Unit::kMatmul;
      break;
    }
    case OpKind::kConvolution:
      work.flops = 2 * points;
      work.unit = Unit::kMatmul;
      break;
    case OpKind::kLstmCell: {
      // Gates: x and h against their weights. The space has both inner dimensions, which are summed, not multiplied.
      double rows = 1, inner = 0;
      for (std::size_t i = 0; i < space.dims.size(); ++i) {
        const double size = static_cast<double>(graph.size(space.dims[i].dim)) / (degrees.empty() ? 1 : degrees[i]);
        (i < 3 ? rows : inner) = i < 3 ? rows * size : inner + size;  // batch, units, gates; then in and recurrent
      }
      work.flops = passes * 2 * rows * inner;
      work.unit = Unit::kMatmul;
      break;
    }
    case OpKind::kAttention: {
      // Two GEMMs, of which causal attention computes half the tiles; backward computes scores again: five.
      const double causal = op.function == "causal" ? 0.5 : 1;
      work.flops = (op.part == Part::kBackward ? 10 : 4) * causal * points;
      work.unit = Unit::kAttention;
      break;
    }
    default:
      work.flops = written;
      if (is_alias(op)) work = {.unit = Unit::kNothing};
  }
  return work;
}

double seconds_of(const cost::Hardware& hardware, cost::Arithmetic arithmetic, const Work& work) {
  switch (work.unit) {
    case Unit::kMatmul:
      return cost::compute_seconds(hardware, arithmetic, work.flops, work.bytes);
    case Unit::kAttention:
      return cost::attention_seconds(hardware, arithmetic, work.flops);
    case Unit::kStream:
      return cost::stream_seconds(hardware, work.bytes);
    case Unit::kNothing:
      return 0;
  }
  return 0;
}

GraphCount count(const Graph& graph) {
  GraphCount result;
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.role != Role::kParameter) continue;
    result.parameters += graph.elements(tensor);
    result.parameter_bytes += graph.bytes(tensor);
  }
  for (const Op& op : graph.ops) {
    const Work work = work_of(graph, op, iteration_space(graph, op));
    (op.forward >= 0 ? result.backward_flops : result.forward_flops) += work.flops;
    if (op.forward < 0 && work.unit == Unit::kMatmul) result.matmul_flops += work.flops;
    result.bytes += work.bytes;
  }
  const auto whole = [&](int tensor) { return graph.bytes(graph.tensor(tensor)); };
  const std::vector<double> live = live_bytes(graph, whole);
  if (!live.empty()) result.peak_bytes = *std::ranges::max_element(live);
  return result;
}

std::vector<double> live_bytes(const Graph& graph, const std::function<double(int tensor)>& bytes) {
  const Uses uses = uses_of(graph);
  const std::size_t ops = graph.ops.size(), tensors = graph.tensors.size();
  // What a reshape gives out is the memory of its input, which lives as long as both.
  std::vector<int> memory(tensors);
  for (std::size_t i = 0; i < tensors; ++i) memory[i] = static_cast<int>(i);
  for (const Op& op : graph.ops) {
    if (op.kind != OpKind::kReshape) continue;
    for (const int output : op.outputs)
      memory[static_cast<std::size_t>(output)] = memory[static_cast<std::size_t>(op.inputs[0])];
  }
  std::vector<std::size_t> first(tensors, ops), last(tensors, 0);
  for (std::size_t i = 0; i < tensors; ++i) {
    const auto owner = static_cast<std::size_t>(memory[i]);
    const bool stays = graph.tensors[i].role == Role::kParameter ||
                       (graph.tensors[i].grad_of >= 0 &&
                        graph.tensor(graph.tensors[i].grad_of).role == Role::kParameter && uses.consumers[i].empty());
    const std::size_t made = uses.producer[i] < 0 ? 0 : static_cast<std::size_t>(uses.producer[i]);
    std::size_t read = uses.consumers[i].empty() ? made : static_cast<std::size_t>(uses.consumers[i].back());
    if (stays) read = ops - 1;
    first[owner] = std::min(first[owner], made);
    last[owner] = std::max(last[owner], read);
  }
  std::vector<double> change(ops + 1, 0), live(ops, 0);
  for (std::size_t i = 0; i < tensors; ++i) {
    if (memory[i] != static_cast<int>(i) || first[i] >= ops) continue;
    const double size = bytes(static_cast<int>(i));
    change[first[i]] += size;
    change[last[i] + 1] -= size;
  }
  double sum = 0;
  for (std::size_t i = 0; i < ops; ++i) live[i] = sum += change[i];
  return live;
}

}  // namespace trireme::plan::graph
