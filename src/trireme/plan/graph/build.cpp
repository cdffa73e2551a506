#include "trireme/plan/graph/build.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::plan::graph {
namespace {

std::vector<int> joined_dims(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

int Builder::dim(const std::string& name, Index size) {
  const auto [place, is_new] = dims_.try_emplace(name, static_cast<int>(graph_.dims.size()));
  if (is_new) graph_.dims.push_back({name, size});
  if (graph_.size(place->second) != size)
    throw ConfigError(fmt::format("dimension {} of graph {} has size {} and size {}", name, graph_.name,
                                  graph_.size(place->second), size),
                      "a dimension has one size: give the second one another name");
  return place->second;
}

int Builder::add(Tensor tensor) {
  graph_.tensors.push_back(std::move(tensor));
  return static_cast<int>(graph_.tensors.size()) - 1;
}

int Builder::input(const std::string& name, std::vector<int> dims) {
  return add({.name = name, .dims = std::move(dims), .role = Role::kInput, .dtype = dtype_});
}

int Builder::indices(const std::string& name, std::vector<int> dims) {
  return add({.name = name, .dims = std::move(dims), .role = Role::kInput, .dtype = DType::kInt32});
}

int Builder::parameter(const std::string& name, std::vector<int> dims) {
  return add({.name = name, .dims = std::move(dims), .role = Role::kParameter, .dtype = dtype_});
}

int Builder::output(const std::string& name, std::vector<int> dims) {
  return add({.name = name, .dims = std::move(dims), .role = Role::kActivation, .dtype = dtype_});
}

int Builder::einsum(const std::string& name, std::vector<int> inputs, std::vector<int> dims,
                    const std::string& function) {
  const int y = output(name + ".out", std::move(dims));
  graph_.ops.push_back({.name = name, .inputs = std::move(inputs), .outputs = {y}, .function = function});
  return y;
}

int Builder::dense(const std::string& name, int x, const std::vector<int>& over, const std::vector<int>& to,
                   bool bias) {
  std::vector<int> inputs{x, parameter(name + ".weight", joined_dims(over, to))}, dims;
  for (const int dim : dims_of(x)) {
    if (std::ranges::find(over, dim) == over.end()) dims.push_back(dim);
  }
  if (bias) inputs.push_back(parameter(name + ".bias", to));
  const int y = einsum(name, std::move(inputs), joined_dims(std::move(dims), to));
  graph_.ops.back().bias = bias;
  return y;
}

int Builder::linear(const std::string& name, int x, int to, bool bias) {
  return dense(name, x, {dims_of(x).back()}, {to}, bias);
}

/// Fills in the dimensions of a window and returns its output's.
int Builder::slide(Window& window, int in, char letter, int axis, const std::array<Index, 2>& stride) {
  const Index size = graph_.size(in);
  window.in = in;
  window.stride = stride[static_cast<std::size_t>(axis)];
  const Index reach = size + 2 * window.padding - window.kernel;
  if (reach < 0)
    throw ConfigError(fmt::format("a kernel of {} does not fit into {} rows", window.kernel, size),
                      "take larger images");
  const Index rows = reach / window.stride + 1;
  window.out = rows == size ? in : dim(fmt::format("{}{}", letter, rows), rows);
  return window.out;
}

int Builder::convolution(const std::string& name, int x, const ConvolutionShape& shape) {
  const std::vector<int> dims = dims_of(x);
  const std::string channels = shape.channel_dim.empty() ? name + ".c" : shape.channel_dim;
  const int to = dim(channels, shape.channels);
  Op op{.name = name, .kind = OpKind::kConvolution, .inputs = {x}, .bias = shape.bias};
  std::vector<int> weight{to, dims[1]}, result{dims[0], to};
  for (int axis = 0; axis < 2; ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    const char letter = axis == 0 ? 'h' : 'w';
    Window window{.kernel = shape.kernel[at], .padding = shape.padding[at]};
    window.kernel_dim = dim(fmt::format("k{}{}", letter, window.kernel), window.kernel);
    result.push_back(slide(window, dims[at + 2], letter, axis, shape.stride));
    weight.push_back(window.kernel_dim);
    op.windows.push_back(window);
  }
  op.inputs.push_back(parameter(name + ".weight", weight));
  if (shape.bias) op.inputs.push_back(parameter(name + ".bias", {to}));
  op.outputs = {output(name + ".out", result)};
  graph_.ops.push_back(op);
  return op.outputs[0];
}

int Builder::transposed_convolution(const std::string& name, int x, Index channels, Index factor) {
  const std::vector<int> dims = dims_of(x);
  const int to = dim(name + ".c", channels);
  Op op{.name = name, .kind = OpKind::kConvolution, .part = Part::kBackwardData, .inputs = {x}, .bias = true};
  std::vector<int> weight{dims[1], to}, result{dims[0], to};
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const char letter = axis == 0 ? 'h' : 'w';
    const Index rows = size(dims[axis + 2]) * factor;
    Window window{.in = dim(fmt::format("{}{}", letter, rows), rows), .out = dims[axis + 2]};
    window.kernel = window.stride = factor;
    window.kernel_dim = dim(fmt::format("k{}{}", letter, factor), factor);
    result.push_back(window.in);
    weight.push_back(window.kernel_dim);
    op.windows.push_back(window);
  }
  op.inputs.push_back(parameter(name + ".weight", weight));
  op.inputs.push_back(parameter(name + ".bias", {to}));
  op.outputs = {output(name + ".out", result)};
  graph_.ops.push_back(op);
  return op.outputs[0];
}

int Builder::pooling(const std::string& name, int x, const PoolingShape& shape) {
  const std::vector<int> dims = dims_of(x);
  Op op{.name = name, .kind = OpKind::kPooling, .inputs = {x}, .function = shape.function};
  std::vector<int> result{dims[0], dims[1]};
  for (int axis = 0; axis < 2; ++axis) {
    const auto at = static_cast<std::size_t>(axis);
    Window window{.kernel = shape.kernel[at], .padding = shape.padding[at]};
    result.push_back(slide(window, dims[at + 2], axis == 0 ? 'h' : 'w', axis, shape.stride));
    op.windows.push_back(window);
  }
  op.outputs = {output(name + ".out", result)};
  graph_.ops.push_back(op);
  return op.outputs[0];
}

int Builder::global_average(const std::string& name, int x) {
  const std::vector<int> dims = dims_of(x);
  return einsum(name, {x}, {dims[0], dims[1]}, "mean");
}

int Builder::batch_norm(const std::string& name, int x) {
  const std::vector<int> dims = dims_of(x);
  const int scale = parameter(name + ".weight", {dims[1]}), shift = parameter(name + ".bias", {dims[1]});
  const int y = output(name + ".out", dims);
  graph_.ops.push_back({.name = name,
                        .kind = OpKind::kNorm,
                        .inputs = {x, scale, shift},
                        .outputs = {y},
                        .function = "batch",
                        .dims = {dims[0], dims[2], dims[3]}});
  return y;
}

int Builder::layer_norm(const std::string& name, int x) {
  const std::vector<int> dims = dims_of(x);
  const int scale = parameter(name + ".weight", {dims.back()}), shift = parameter(name + ".bias", {dims.back()});
  const int y = output(name + ".out", dims);
  graph_.ops.push_back({.name = name,
                        .kind = OpKind::kNorm,
                        .inputs = {x, scale, shift},
                        .outputs = {y},
                        .function = "layer",
                        .dims = {dims.back()}});
  return y;
}

int Builder::rms_norm(const std::string& name, int x) {
  const std::vector<int> dims = dims_of(x);
  const int scale = parameter(name + ".weight", {dims.back()}), y = output(name + ".out", dims);
  graph_.ops.push_back({.name = name,
                        .kind = OpKind::kNorm,
                        .inputs = {x, scale},
                        .outputs = {y},
                        .function = "rms",
                        .dims = {dims.back()}});
  return y;
}

int Builder::rotary(const std::string& name, int x, int positions, double base) {
  const std::vector<int> dims = dims_of(x);
  const int y = output(name + ".out", dims);
  graph_.ops.push_back({.name = name,
                        .kind = OpKind::kRotary,
                        .inputs = {x},
                        .outputs = {y},
                        .dims = {positions, dims.back()},
                        .base = base});
  return y;
}

int Builder::elementwise(const std::string& name, const std::string& function, std::vector<int> inputs) {
  const int y = output(name + ".out", dims_of(inputs[0]));
  graph_.ops.push_back(
      {.name = name, .kind = OpKind::kElementwise, .inputs = std::move(inputs), .outputs = {y}, .function = function});
  return y;
}

int Builder::gather(const std::string& name, int table, int ids) {
  const int y = output(name + ".out", joined_dims(dims_of(ids), {dims_of(table)[1]}));
  graph_.ops.push_back({.name = name, .kind = OpKind::kGather, .inputs = {table, ids}, .outputs = {y}});
  return y;
}

int Builder::attention(const std::string& name, int q, int k, int v, const std::string& function, Index reach) {
  const int y = output(name + ".out", dims_of(q));
  graph_.ops.push_back({.name = name,
                        .kind = OpKind::kAttention,
                        .inputs = {q, k, v},
                        .outputs = {y},
                        .function = function,
                        .reach = reach});
  return y;
}

LstmWeights Builder::lstm_weights(const std::string& name, int in, int hidden) {
  const int gates = dim("gates", 4), recurrent = dim(graph_.dims[std::size_t(hidden)].name + ".in", size(hidden));
  return {.input = parameter(name + ".weight_x", {in, gates, hidden}),
          .recurrent = parameter(name + ".weight_h", {recurrent, gates, hidden}),
          .bias = parameter(name + ".bias", {gates, hidden})};
}

LstmState Builder::lstm(const std::string& name, int x, LstmState state, const LstmWeights& weights) {
  const std::vector<int> dims = dims_of(state.h);
  const LstmState next{.h = output(name + ".h", dims), .c = output(name + ".cell", dims)};
  graph_.ops.push_back({.name = name,
                        .kind = OpKind::kLstmCell,
                        .inputs = {x, state.h, state.c, weights.input, weights.recurrent, weights.bias},
                        .outputs = {next.h, next.c}});
  return next;
}

int Builder::router(const std::string& name, int logits, int slots, const std::string& function) {
  const int y = output(name + ".out", joined_dims(dims_of(logits), {slots}));
  graph_.ops.push_back(
      {.name = name, .kind = OpKind::kRouter, .inputs = {logits}, .outputs = {y}, .function = function});
  return y;
}

int Builder::loss(const std::string& name, int logits, int labels, int classes) {
  const int y = output(name + ".out", {});
  graph_.ops.push_back(
      {.name = name, .kind = OpKind::kSoftmaxLoss, .inputs = {logits, labels}, .outputs = {y}, .dims = {classes}});
  return y;
}

int Builder::concat(const std::string& name, const std::vector<int>& inputs, int along, int of) {
  std::vector<int> dims = dims_of(inputs[0]);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const bool differs =
        dims[i] == of || std::ranges::any_of(inputs, [&](int input) { return dims_of(input)[i] != dims[i]; });
    if (differs) dims[i] = along;
  }
  const int y = output(name + ".out", dims);
  graph_.ops.push_back({.name = name, .kind = OpKind::kConcat, .inputs = inputs, .outputs = {y}, .dims = {along}});
  return y;
}

std::vector<int> Builder::split(const std::string& name, int x, int along, const std::vector<int>& parts) {
  Op op{.name = name, .kind = OpKind::kSplit, .inputs = {x}, .dims = {along}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::vector<int> dims = dims_of(x);
    std::ranges::replace(dims, along, parts[i]);
    op.outputs.push_back(output(fmt::format("{}.{}", name, i), dims));
  }
  graph_.ops.push_back(op);
  return graph_.ops.back().outputs;
}

int Builder::reshape(const std::string& name, int x, std::vector<Regroup> regroups) {
  std::vector<int> dims;
  for (const int dim : dims_of(x)) {
    const auto group = std::ranges::find_if(
        regroups, [&](const Regroup& r) { return std::ranges::find(r.from, dim) != r.from.end(); });
    if (group == regroups.end()) dims.push_back(dim);
    if (group != regroups.end() && group->from.front() == dim) dims = joined_dims(std::move(dims), group->to);
  }
  const int y = output(name + ".out", dims);
  graph_.ops.push_back(
      {.name = name, .kind = OpKind::kReshape, .inputs = {x}, .outputs = {y}, .regroups = std::move(regroups)});
  return y;
}

Graph Builder::finish() {
  const std::vector<std::string> problems = find_problems(graph_);
  if (!problems.empty()) throw InternalError(fmt::format("graph {}: {}", graph_.name, problems.front()));
  return std::move(graph_);
}

}  // namespace trireme::plan::graph
