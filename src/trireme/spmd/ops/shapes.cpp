// Concat, split and reshape: the dimension that is joined or cut is whole on every rank.
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

/// The joined dimension's place, and how much of it each part has.
struct Joint {
  std::int64_t axis = 0;
  std::vector<Index> sizes;
};
Joint joint_of(const OpCall& call) {
  const pg::Op& forward = call.forward();
  const bool joins = forward.kind == pg::OpKind::kConcat;
  Joint joint{position(call.dims(joins ? forward.outputs[0] : forward.inputs[0]), forward.dims[0]), {}};
  for (const int part : joins ? forward.inputs : forward.outputs)
    joint.sizes.push_back(call.graph.size(call.dims(part)[static_cast<std::size_t>(joint.axis)]));
  return joint;
}

std::vector<at::Tensor> parts_of(const at::Tensor& whole, const Joint& joint) {
  std::vector<at::Tensor> parts;
  Index begin = 0;
  for (const Index size : joint.sizes) {
    parts.push_back(whole.narrow(joint.axis, begin, size).contiguous());
    begin += size;
  }
  return parts;
}

}  // namespace

Outputs run_concat(OpCall& call) {
  const Joint joint = joint_of(call);
  if (call.op.part == pg::Part::kForward) {
    std::vector<at::Tensor> parts;
    for (const Block& input : call.inputs) parts.push_back(input.data);
    return {at::cat(parts, joint.axis)};
  }
  const Block* gradient = call.gradient(call.forward().outputs[0]);
  TRIREME_CHECK(gradient, "operator {} has no gradient to pass on", call.op.name);
  const std::vector<at::Tensor> parts = parts_of(gradient->data, joint);
  const std::vector<int> places = call.gradient_outputs();
  Outputs outputs(call.op.outputs.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] >= 0) outputs[static_cast<std::size_t>(places[i])] = parts[i];
  }
  return outputs;
}

Outputs run_split(OpCall& call) {
  const Joint joint = joint_of(call);
  if (call.op.part == pg::Part::kForward) return parts_of(call.inputs[0].data, joint);
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < joint.sizes.size(); ++i) {
    if (const Block* gradient = call.gradient(call.forward().outputs[i])) {
      parts.push_back(gradient->data);
      continue;
    }
    // Nothing depends on this part.
    std::vector<Index> sizes = call.outputs[0].sizes;
    sizes[static_cast<std::size_t>(joint.axis)] = joint.sizes[i];
    parts.push_back(at::zeros(sizes, call.inputs[0].data.options()));
  }
  return {at::cat(parts, joint.axis)};
}

Outputs run_reshape(OpCall& call) { return {call.inputs[0].data.reshape(call.outputs[0].sizes)}; }

}  // namespace trireme::spmd
