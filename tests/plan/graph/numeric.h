// Tests run graphs with plain loops in double: the reference that derived gradients and shardings are held against.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/plan/graph/graph.h"

namespace trireme::plan::graph::numeric {

/// Sizes may be smaller than the graph's: one rank's part.
struct Array {
  std::vector<Index> shape;
  std::vector<double> data;

  explicit Array(std::vector<Index> sizes = {}) : shape(std::move(sizes)) {
    Index elements = 1;
    for (const Index size : shape) elements *= size;
    data.assign(static_cast<std::size_t>(elements), 0);
  }
  std::size_t at(const std::vector<Index>& place) const {
    Index offset = 0;
    for (std::size_t i = 0; i < shape.size(); ++i) offset = offset * shape[i] + place[i];
    return static_cast<std::size_t>(offset);
  }
};

/// Calls body(place) for every place of a box of these sizes.
template <typename Body>
void for_each_place(const std::vector<Index>& sizes, Body&& body) {
  std::vector<Index> place(sizes.size(), 0);
  for (const Index size : sizes) {
    if (size == 0) return;
  }
  while (true) {
    body(place);
    std::size_t i = sizes.size();
    while (i > 0 && ++place[i - 1] == sizes[i - 1]) place[--i] = 0;
    if (i == 0) return;
  }
}

using Values = std::map<int, Array>;  ///< by tensor

inline std::vector<Index> shape_of(const Graph& graph, int tensor) {
  std::vector<Index> shape;
  for (const int dim : graph.tensor(tensor).dims) shape.push_back(graph.size(dim));
  return shape;
}

/// Sums of products over names; a dimension's size is that of the operands that have it.
inline Array einsum(const Graph& graph, const Op& op, const std::vector<const Array*>& inputs) {
  std::map<int, std::size_t> axis;
  std::vector<Index> sizes;
  const auto note = [&](int tensor, const std::vector<Index>& shape) {
    for (std::size_t i = 0; i < shape.size(); ++i) {
      if (axis.emplace(graph.tensor(tensor).dims[i], sizes.size()).second) sizes.push_back(shape[i]);
    }
  };
  const std::size_t factors = inputs.size() - (op.bias ? 1 : 0);
  for (std::size_t i = 0; i < factors; ++i) note(op.inputs[i], inputs[i]->shape);
  note(op.outputs[0], shape_of(graph, op.outputs[0]));  // broadcast
  const auto place_in = [&](int tensor, const std::vector<Index>& place) {
    std::vector<Index> own;
    for (const int dim : graph.tensor(tensor).dims) own.push_back(place[axis.at(dim)]);
    return own;
  };
  std::vector<Index> shape;
  for (const int dim : graph.tensor(op.outputs[0]).dims) shape.push_back(sizes[axis.at(dim)]);
  Array result(shape);
  double divisor = 1;
  if (op.function == "mean") {
    const Op& forward = op.forward >= 0 ? graph.op(op.forward) : op;
    divisor = static_cast<double>(graph.elements(graph.tensor(forward.inputs[0]))) /
              static_cast<double>(graph.elements(graph.tensor(forward.outputs[0])));
  }
  for_each_place(sizes, [&](const std::vector<Index>& place) {
    double product = 1 / divisor;
    for (std::size_t i = 0; i < factors; ++i) product *= inputs[i]->data[inputs[i]->at(place_in(op.inputs[i], place))];
    result.data[result.at(place_in(op.outputs[0], place))] += product;
  });
  if (op.bias) {
    for_each_place(shape, [&](const std::vector<Index>& place) {
      std::vector<Index> own;
      for (const int dim : graph.tensor(op.inputs.back()).dims) {
        const auto& dims = graph.tensor(op.outputs[0]).dims;
        own.push_back(place[static_cast<std::size_t>(std::ranges::find(dims, dim) - dims.begin())]);
      }
      result.data[result.at(place)] += inputs.back()->data[inputs.back()->at(own)];
    });
  }
  return result;
}

/// All three parts of a convolution, from what each multiplies: large[n,i,h,w], small[n,o,p,q], weight[o,i,r,s].
inline Array convolution(const Graph& graph, const Op& op, const std::vector<const Array*>& inputs) {
  Array result(shape_of(graph, op.outputs[0]));
  const bool data = op.part == Part::kBackwardData, weight = op.part == Part::kBackwardWeight;
  const Array& large = data ? result : *inputs[0];
  const Array& small = data ? *inputs[0] : weight ? *inputs[1] : result;
  const Array& kernel = weight ? result : *inputs[1];
  std::vector<Index> sizes{small.shape[0], small.shape[1], large.shape[1]};
  for (std::size_t i = 2; i < small.shape.size(); ++i) sizes.push_back(small.shape[i]);
  for (std::size_t i = 2; i < kernel.shape.size(); ++i) sizes.push_back(kernel.shape[i]);
  const std::size_t windows = op.windows.size();
  for_each_place(sizes, [&](const std::vector<Index>& p) {
    std::vector<Index> at_large{p[0], p[2]}, at_small{p[0], p[1]}, at_kernel{p[1], p[2]};
    for (std::size_t i = 0; i < windows; ++i) {
      const Window& window = op.windows[i];
      const Index row = p[3 + i] * window.stride - window.padding + p[3 + windows + i] * window.dilation;
      if (row < 0 || row >= large.shape[2 + i]) return;
      at_large.push_back(row);
      at_small.push_back(p[3 + i]);
      at_kernel.push_back(p[3 + windows + i]);
    }
    const double l = large.data[large.at(at_large)], s = small.data[small.at(at_small)],
                 k = kernel.data[kernel.at(at_kernel)];
    if (data)
      result.data[result.at(at_large)] += s * k;
    else if (weight)
      result.data[result.at(at_kernel)] += l * s;
    else
      result.data[result.at(at_small)] += l * k;
  });
  if (op.bias) {
    for_each_place(result.shape, [&](const std::vector<Index>& p) {
      result.data[result.at(p)] += inputs[2]->data[static_cast<std::size_t>(p[1])];
    });
  }
  return result;
}

/// Where an operand with fewer dimensions is read.
inline std::vector<Index> place_within(const Graph& graph, int part, int whole, const std::vector<Index>& place) {
  std::vector<Index> own;
  const auto& dims = graph.tensor(whole).dims;
  for (const int dim : graph.tensor(part).dims)
    own.push_back(place[static_cast<std::size_t>(std::ranges::find(dims, dim) - dims.begin())]);
  return own;
}

inline void elementwise(const Graph& graph, const Op& op, Values& values) {
  if (op.part == Part::kForward) {
    Array result(shape_of(graph, op.outputs[0]));
    for_each_place(result.shape, [&](const std::vector<Index>& place) {
      double value = op.function == "multiply" ? 1 : 0;
      for (const int input : op.inputs) {
        const Array& from = values.at(input);
        const double x = from.data[from.at(place_within(graph, input, op.outputs[0], place))];
        value = op.function == "multiply" ? value * x : value + x;
      }
      if (op.function == "relu") value = std::max(value, 0.0);
      if (op.function == "tanh") value = std::tanh(value);
      result.data[result.at(place)] = value;
    });
    values[op.outputs[0]] = std::move(result);
    return;
  }
  const Op& forward = graph.op(op.forward);
  const int output = forward.outputs[0];
  const Array gradient = values.at(op.inputs[0]), y = values.at(output);
  for (const int out : op.outputs) {
    Array result(shape_of(graph, out));
    const int of = graph.tensor(out).grad_of;
    for_each_place(gradient.shape, [&](const std::vector<Index>& place) {
      double slope = 1;
      const double value = y.data[y.at(place)];
      if (op.function == "relu") slope = value > 0 ? 1 : 0;
      if (op.function == "tanh") slope = 1 - value * value;
      if (op.function == "multiply") {
        for (const int input : forward.inputs) {
          const Array& from = values.at(input);
          if (input != of) slope *= from.data[from.at(place_within(graph, input, output, place))];
        }
      }
      result.data[result.at(place_within(graph, out, output, place))] += slope * gradient.data[gradient.at(place)];
    });
    values[out] = std::move(result);
  }
}

/// Mean over the labels of -log softmax; classes are the last dimension or the second.
inline void loss(const Graph& graph, const Op& op, Values& values) {
  const Op& forward = op.forward >= 0 ? graph.op(op.forward) : op;
  const Array &logits = values.at(forward.inputs[0]), &labels = values.at(forward.inputs[1]);
  const auto& dims = graph.tensor(forward.inputs[0]).dims;
  const auto axis = static_cast<std::size_t>(std::ranges::find(dims, forward.dims[0]) - dims.begin());
  const Index classes = logits.shape[axis];
  double total = 0;
  Array gradient(logits.shape);
  const double count = static_cast<double>(labels.data.size());
  for_each_place(labels.shape, [&](const std::vector<Index>& place) {
    std::vector<Index> at;
    for (std::size_t i = 0, j = 0; i < dims.size(); ++i) at.push_back(i == axis ? 0 : place[j++]);
    double sum = 0;
    for (Index c = 0; c < classes; ++c) {
      at[axis] = c;
      sum += std::exp(logits.data[logits.at(at)]);
    }
    const auto label = static_cast<Index>(labels.data[labels.at(place)]);
    for (Index c = 0; c < classes; ++c) {
      at[axis] = c;
      const double p = std::exp(logits.data[logits.at(at)]) / sum;
      gradient.data[gradient.at(at)] = (p - (c == label ? 1 : 0)) / count;
      if (c == label) total -= std::log(p) / count;
    }
  });
  if (op.part == Part::kForward) {
    values[op.outputs[0]] = Array(std::vector<Index>{});
    values[op.outputs[0]].data[0] = total;
  } else {
    values[op.outputs[0]] = std::move(gradient);
  }
}

inline void run_op(const Graph& graph, const Op& op, Values& values) {
  std::vector<const Array*> inputs;
  for (const int input : op.inputs) inputs.push_back(&values.at(input));
  switch (op.kind) {
    case OpKind::kEinsum:
      values[op.outputs[0]] = einsum(graph, op, inputs);
      return;
    case OpKind::kConvolution:
      values[op.outputs[0]] = convolution(graph, op, inputs);
      return;
    case OpKind::kElementwise:
      return elementwise(graph, op, values);
    case OpKind::kSoftmaxLoss:
      return loss(graph, op, values);
    case OpKind::kReshape: {
      Array result(shape_of(graph, op.outputs[0]));
      result.data = inputs[0]->data;
      values[op.outputs[0]] = std::move(result);
      return;
    }
    default:
      throw std::logic_error("the reference does not know " + op.name);
  }
}

inline Values random_values(const Graph& graph, std::uint64_t seed) {
  Values values;
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& tensor = graph.tensors[i];
    if (tensor.role == Role::kActivation) continue;
    Array array(shape_of(graph, static_cast<int>(i)));
    const Random random(seed, tensor.name);
    for (std::size_t k = 0; k < array.data.size(); ++k)
      array.data[k] = tensor.dtype == DType::kInt32 ? static_cast<double>(random.below(2, k)) : 0.5 * random.normal(k);
    values[static_cast<int>(i)] = std::move(array);
  }
  return values;
}

inline Values run(const Graph& graph, Values values) {
  for (const Op& op : graph.ops) run_op(graph, op, values);
  return values;
}

}  // namespace trireme::plan::graph::numeric
