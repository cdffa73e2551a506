#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/threshold_backward.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

std::vector<Index> whole_sizes(const OpCall& call, int tensor) {
  std::vector<Index> sizes;
  for (const int dim : call.dims(tensor)) sizes.push_back(call.graph.size(dim));
  return sizes;
}

at::Tensor mask_of(const OpCall& call, const pg::Op& forward, const Place& place, const at::Tensor& like) {
  std::vector<Index> whole = whole_sizes(call, forward.outputs[0]);
  const Place in_batch = call.micro.in_batch(call.dims(forward.outputs[0]), place, whole);
  return dropout_mask(forward.name, in_batch, whole, call.seed, call.step, like.options());
}

at::Tensor forward_value(OpCall& call) {
  const pg::Op& op = call.op;
  const auto& out = call.dims(op.outputs[0]);
  at::Tensor x;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const at::Tensor next = aligned(call.inputs[i].data, call.dims(op.inputs[i]), out);
    x = !x.defined() ? next : op.function == "multiply" ? at::mul(x, next) : at::add(x, next);
  }
  if (op.function == "relu") x = at::relu(x);
  if (op.function == "gelu") x = at::gelu(x);
  if (op.function == "silu") x = at::silu(x);
  if (op.function == "tanh") x = at::tanh(x);
  if (op.function == "sigmoid") x = at::sigmoid(x);
  x = x.expand(call.outputs[0].sizes);
  if (op.function == "dropout") {
    x = x * mask_of(call, op, call.outputs[0], x);
  }
  return packed(x);
}

/// The derivative by one input, times the gradient, in the output's shape.
at::Tensor derivative(OpCall& call, const Block& gradient, std::size_t by) {
  const pg::Op& forward = call.forward();
  const auto& out = call.dims(forward.outputs[0]);
  const at::Tensor& g = gradient.data;
  const auto operand = [&](int tensor) {
    const Block* block = call.operand(tensor);
    TRIREME_CHECK(block, "operator {} needs {}", call.op.name, call.graph.tensor(tensor).name);
    return aligned(block->data, call.dims(tensor), out);
  };
  if (forward.function == "add") return g;
  if (forward.function == "multiply") {
    at::Tensor product = g;
    for (std::size_t i = 0; i < forward.inputs.size(); ++i) {
      if (i != by) product = product * operand(forward.inputs[i]);
    }
    return product;
  }
  if (forward.function == "gelu") return at::gelu_backward(g, operand(forward.inputs[0]).expand(g.sizes()));
  if (forward.function == "silu") return at::silu_backward(g, operand(forward.inputs[0]).expand(g.sizes()));
  if (forward.function == "dropout") {
    return g * mask_of(call, forward, {gradient.origin, g.sizes().vec()}, g);
  }
  const at::Tensor y = operand(forward.outputs[0]);
  if (forward.function == "relu") return at::threshold_backward(g, y.expand(g.sizes()), 0);
  if (forward.function == "tanh") return g * (1 - y * y);
  TRIREME_CHECK(forward.function == "sigmoid", "elementwise function {}", forward.function);
  return g * y * (1 - y);
}

/// The sum, ReLU or one of their gradients in a norm's tail. Undefined: nobody needs what it would be.
at::Tensor value_of_tail(OpCall& call) {
  NormTail& tail = *call.tail;
  switch (call.member.part) {
    case TailPart::kAdd:
      for (const Block& summand : call.inputs) {
        if (summand.data.defined()) tail.add = channels_last(summand.data);
      }
      return {};
    case TailPart::kRelu: {
      kernels::NormedImage out = apply_batch_norm(tail.norm, {.add = tail.add,
                                                              .other = tail.other.x.defined() ? &tail.other : nullptr,
                                                              .relu = true,
                                                              .keeps_signs = call.member.adds});
      tail.add = at::Tensor();
      tail.positive = out.positive;
      return out.y;
    }
    case TailPart::kGradientSum:
      tail.dy = channels_last(call.inputs[0].data), tail.more = channels_last(call.inputs[1].data);
      return {};
    default: {
      TRIREME_CHECK(call.member.part == TailPart::kReluGradient, "operator {} has no place in a tail", call.op.name);
      if (const Block* gradient = call.gradient(call.forward().outputs[0]); gradient && gradient->data.defined())
        tail.dy = channels_last(gradient->data);
      if (!call.member.adds) return {};  // the norm's gradient operator reads it
      tail.sums =
          batch_norm_sums(tail.norm, {.dy = tail.dy, .more = tail.more, .positive = tail.positive, .wants_g = true});
      tail.dy = tail.more = tail.positive = at::Tensor();
      return std::move(tail.sums.g);
    }
  }
}

}  // namespace

Place MicroBatch::in_batch(const std::vector<int>& of, Place place, std::vector<Index>& whole) const {
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (count == 1 || position(dims, of[i]) < 0) continue;
    place.origin[i] += number * whole[i];
    whole[i] *= count;
  }
  return place;
}

at::Tensor dropout_mask(const std::string& name, const Place& place, const std::vector<Index>& whole,
                        std::uint64_t seed, std::int64_t step, const at::TensorOptions& options) {
  const Random random(seed, fmt::format("dropout/{}/step {}", name, step));
  at::Tensor mask = at::empty(place.sizes, at::kFloat);
  auto* out = mask.mutable_data_ptr<float>();
  const std::size_t rank = whole.size();
  const auto row = static_cast<std::size_t>(rank == 0 ? 1 : place.sizes.back());
  std::vector<float> draws(row);
  std::vector<Index> at(rank, 0);  // within the box; the last dimension is drawn at once
  for (std::int64_t left = mask.numel(); left > 0; left -= static_cast<std::int64_t>(row)) {
    std::uint64_t index = 0;
    for (std::size_t i = 0; i < rank; ++i)
      index = index * static_cast<std::uint64_t>(whole[i]) + static_cast<std::uint64_t>(place.origin[i] + at[i]);
    random.fill_uniform(index, draws);
    for (const float draw : draws) *out++ = draw < 0.5F ? 0.F : 2.F;
    for (std::size_t i = rank > 0 ? rank - 1 : 0; i-- > 0;) {
      if (++at[i] < place.sizes[i]) break;
      at[i] = 0;
    }
  }
  return mask.to(options.device(), options.dtype().toScalarType());
}

Outputs run_elementwise(OpCall& call) {
  if (call.tail) return {value_of_tail(call)};
  if (call.op.part == pg::Part::kForward) return {forward_value(call)};
  const pg::Op& forward = call.forward();
  const Block* gradient = call.gradient(forward.outputs[0]);
  TRIREME_CHECK(gradient, "operator {} has no gradient to pass on", call.op.name);
  const std::vector<int> places = call.gradient_outputs();
  Outputs outputs(call.op.outputs.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] < 0) continue;
    outputs[static_cast<std::size_t>(places[i])] =
        summed_to(derivative(call, *gradient, i), call.dims(forward.outputs[0]), call.dims(forward.inputs[i]));
  }
  return outputs;
}

}  // namespace trireme::spmd
