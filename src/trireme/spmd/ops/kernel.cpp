#include "trireme/spmd/ops/kernel.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

using Kernel = Outputs (*)(OpCall&);

Kernel kernel_of(pg::OpKind kind) {
  switch (kind) {
    case pg::OpKind::kEinsum:
      return &run_einsum;
    case pg::OpKind::kConvolution:
      return &run_convolution;
    case pg::OpKind::kPooling:
      return &run_pooling;
    case pg::OpKind::kNorm:
      return &run_norm;
    case pg::OpKind::kElementwise:
      return &run_elementwise;
    case pg::OpKind::kGather:
      return &run_gather;
    case pg::OpKind::kLstmCell:
      return &run_lstm;
    case pg::OpKind::kAttention:
      return &run_attention;
    case pg::OpKind::kRotary:
      return &run_rotary;
    case pg::OpKind::kRouter:
      return &run_router;
    case pg::OpKind::kSoftmaxLoss:
      return &run_loss;
    case pg::OpKind::kConcat:
      return &run_concat;
    case pg::OpKind::kSplit:
      return &run_split;
    case pg::OpKind::kReshape:
      return &run_reshape;
  }
  throw InternalError("an operator of no kind");
}

std::string why_unsupported(const pg::Graph& graph, const pg::Op& op) {
  const auto dims = [&](int tensor) { return graph.tensor(tensor).dims; };
  switch (op.kind) {
    case pg::OpKind::kEinsum:
      for (const int dim : dims(op.outputs[0])) {
        const bool made = std::ranges::any_of(op.inputs, [&](int input) { return position(dims(input), dim) >= 0; });
        if (!made && op.forward < 0) return "its output has a dimension that no input has";
      }
      return "";
    case pg::OpKind::kConvolution:
      return op.windows.empty() || op.windows.size() > 3 ? "convolutions have one to three windows" : "";
    case pg::OpKind::kPooling:
      if (op.windows.size() != 2) return "pooling has two windows";
      for (const pg::Window& window : op.windows) {
        if (op.function == "average" && window.dilation > 1) return "average pooling has no dilation";
      }
      return "";
    case pg::OpKind::kElementwise:
      if (op.function != "add" && op.function != "multiply" && op.inputs.size() > 1)
        return fmt::format("{} has one input", op.function);
      return "";
    case pg::OpKind::kGather: {
      std::vector<int> wanted = dims(op.inputs[1]);
      wanted.push_back(dims(op.inputs[0])[1]);
      return wanted == dims(op.outputs[0]) ? "" : "its output is not the indices' dimensions and the table's second";
    }
    case pg::OpKind::kSoftmaxLoss: {
      if (op.dims.size() != 1) return "classes are one dimension";
      std::vector<int> wanted = dims(op.inputs[0]), labels = dims(op.inputs[1]);
      std::erase(wanted, op.dims[0]);
      std::ranges::sort(wanted);
      std::ranges::sort(labels);
      return wanted == labels ? "" : "labels do not have the logits' dimensions without the classes";
    }
    default:
      return "";
  }
}

}  // namespace

const Block* OpCall::operand(int tensor) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (op.inputs[i] == tensor) return &inputs[i];
  }
  return nullptr;
}

const Block* OpCall::gradient(int tensor) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (graph.tensor(op.inputs[i]).grad_of == tensor) return &inputs[i];
  }
  return nullptr;
}

std::vector<int> OpCall::gradient_outputs() const {
  // Gradients are made in the order of inputs; one that is read twice has two.
  std::vector<int> places;
  std::size_t next = 0;
  for (const int input : forward().inputs) {
    const bool made = next < op.outputs.size() && graph.tensor(op.outputs[next]).grad_of == input;
    places.push_back(made ? static_cast<int>(next++) : -1);
  }
  return places;
}

std::vector<at::Tensor> run_op(OpCall& call) {
  std::vector<at::Tensor> outputs = kernel_of(call.op.kind)(call);
  TRIREME_CHECK(outputs.size() == call.op.outputs.size(), "operator {} made {} tensors", call.op.name, outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const bool is_input = call.deferred_input && !call.deferred_input->tensors.empty() &&
                          call.deferred_input->tensors.back() == call.op.outputs[i];
    const bool may_be = is_input || call.tail || (i < call.deferred.size() && call.deferred[i]);
    const bool is_deferred = may_be && !outputs[i].defined();
    TRIREME_CHECK(is_deferred || outputs[i].defined(), "operator {} did not make {}", call.op.name,
                  call.graph.tensor(call.op.outputs[i]).name);
    if (is_deferred) continue;
    TRIREME_CHECK(outputs[i].sizes().vec() == call.outputs[i].sizes, "operator {} made a block of another shape for {}",
                  call.op.name, call.graph.tensor(call.op.outputs[i]).name);
  }
  return outputs;
}

std::vector<std::string> find_unsupported(const pg::Graph& graph) {
  std::vector<std::string> found;
  for (const pg::Op& op : graph.ops) {
    if (op.part == pg::Part::kBackward) continue;
    const std::string why = why_unsupported(graph, op);
    if (!why.empty()) found.push_back(fmt::format("operator {} ({}): {}", op.name, name_of(op.kind), why));
  }
  for (const pg::Tensor& tensor : graph.tensors) {
    if (tensor.dtype == pg::DType::kFp16) {
      found.push_back(
          fmt::format("tensor {} is of {}; graphs run in bf16, fp32 and fp64", tensor.name, name_of(tensor.dtype)));
      break;
    }
  }
  return found;
}

}  // namespace trireme::spmd
