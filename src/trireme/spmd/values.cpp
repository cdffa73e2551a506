#include "trireme/spmd/values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "trireme/base/error.h"
#include "trireme/base/random.h"

namespace trireme::spmd {
namespace {

/// Where a value's size comes from: its first reader.
const pg::Op* first_reader(const pg::Graph& graph, int tensor, std::size_t& input) {
  for (const pg::Op& op : graph.ops) {
    const auto found = std::ranges::find(op.inputs, tensor);
    if (found == op.inputs.end()) continue;
    input = static_cast<std::size_t>(found - op.inputs.begin());
    return &op;
  }
  return nullptr;
}

Index most_index(const pg::Graph& graph, const pg::Op& op) {
  if (op.kind == pg::OpKind::kGather) return graph.size(graph.tensor(op.inputs[0]).dims[0]);
  return op.kind == pg::OpKind::kSoftmaxLoss ? graph.size(op.dims[0]) : 2;
}

/// Deviation and mean of a parameter.
std::pair<double, double> spread(const pg::Graph& graph, const pg::Tensor& tensor, const pg::Op& op,
                                 std::size_t input) {
  if (op.kind == pg::OpKind::kNorm) return {0.1, input == 1 ? 1.0 : 0.0};
  if (tensor.dims.size() < 2 || op.kind == pg::OpKind::kGather) return {0.1, 0.0};
  // By what is summed over: dimensions that the output does not have.
  double fan = 1;
  const auto& made = graph.tensor(op.outputs[0]).dims;
  for (const int dim : tensor.dims) {
    if (position(made, dim) < 0) fan *= static_cast<double>(graph.size(dim));
  }
  return {1 / std::sqrt(fan), 0.0};
}

}  // namespace

at::ScalarType scalar_type(pg::DType dtype) {
  switch (dtype) {
    case pg::DType::kFp64:
      return at::kDouble;
    case pg::DType::kFp32:
      return at::kFloat;
    case pg::DType::kInt32:
      return at::kLong;
    case pg::DType::kBf16:
      return at::kBFloat16;
    default:
      throw ConfigError("graphs run in bf16, fp32 and fp64", "choose one of them");
  }
}

Values start_values(const pg::Graph& graph, std::uint64_t seed) {
  Values values(graph.tensors.size());
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    const pg::Tensor& tensor = graph.tensors[i];
    std::size_t input = 0;
    const pg::Op* reader = first_reader(graph, static_cast<int>(i), input);
    if (tensor.role == pg::Role::kActivation || !reader) continue;
    std::vector<std::int64_t> sizes;
    for (const int dim : tensor.dims) sizes.push_back(graph.size(dim));
    const Random random(seed, "graph/" + tensor.name);
    if (tensor.dtype == pg::DType::kInt32) {
      values[i] = at::empty(sizes, at::kLong);
      const auto most = static_cast<std::uint64_t>(most_index(graph, *reader));
      for (std::int64_t k = 0; k < values[i].numel(); ++k)
        values[i].mutable_data_ptr<std::int64_t>()[k] =
            static_cast<std::int64_t>(random.below(most, static_cast<std::uint64_t>(k)));
      continue;
    }
    values[i] = at::empty(sizes, at::kDouble);
    random.fill_normal(0, std::span(values[i].mutable_data_ptr<double>(), static_cast<std::size_t>(values[i].numel())));
    if (tensor.role == pg::Role::kParameter) {
      const auto [deviation, mean] = spread(graph, tensor, *reader, input);
      values[i].mul_(deviation).add_(mean);
    }
    values[i] = values[i].to(scalar_type(tensor.dtype));
  }
  return values;
}

Values with_zero_gammas(const pg::Graph& graph, Values values) {
  const pg::Uses uses = uses_of(graph);
  for (const pg::Op& op : graph.ops) {
    if (op.kind != pg::OpKind::kElementwise || op.function != "add" || op.forward >= 0 || op.inputs.size() < 2)
      continue;
    const int producer = uses.producer[static_cast<std::size_t>(op.inputs[0])];
    if (producer < 0 || !is_batch_norm(graph.op(producer))) continue;
    at::Tensor& scale = values[static_cast<std::size_t>(graph.op(producer).inputs[1])];
    scale = at::zeros_like(scale);
  }
  return values;
}

at::Tensor in_channels_last(const at::Tensor& value) {
  const bool is_image = value.defined() && value.dim() == 4 &&
                        (value.scalar_type() == at::kFloat || value.scalar_type() == at::kBFloat16);
  return is_image ? value.contiguous(at::MemoryFormat::ChannelsLast) : value.defined() ? value.contiguous() : value;
}

Values in_channels_last(Values values) {
  for (at::Tensor& value : values) value = in_channels_last(value);
  return values;
}

}  // namespace trireme::spmd
