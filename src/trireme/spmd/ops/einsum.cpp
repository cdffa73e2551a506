// Sums of products over names.
#include <ATen/ops/addmm.h>
#include <ATen/ops/einsum.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

/// Elements that a mean is taken over: those of the forward operator's reduced dimensions, in the whole.
double elements_of_mean(const OpCall& call) {
  const pg::Op& forward = call.forward();
  const auto& made = call.dims(forward.outputs[0]);
  std::vector<int> reduced;
  for (const int input : forward.inputs) {
    for (const int dim : call.dims(input)) {
      if (position(made, dim) < 0 && position(reduced, dim) < 0) reduced.push_back(dim);
    }
  }
  double elements = 1;
  for (const int dim : reduced) elements *= static_cast<double>(call.graph.size(dim));
  return elements;
}

/// A fully connected layer, [..., k] and [k, m], on a rank that adds the bias: one GEMM does both. Undefined where the
/// operator is something else.
at::Tensor fully_connected(const OpCall& call) {
  const pg::Op& op = call.op;
  if (!op.bias || op.inputs.size() != 3 || !op.function.empty()) return {};
  const auto &x = call.dims(op.inputs[0]), &weight = call.dims(op.inputs[1]), &out = call.dims(op.outputs[0]);
  if (x.empty() || weight.size() != 2 || out.size() != x.size() || weight[0] != x.back() || weight[1] != out.back() ||
      !std::equal(x.begin(), x.end() - 1, out.begin()) || call.dims(op.inputs[2]) != std::vector<int>{weight[1]} ||
      call.inputs[1].origin[0] != 0)
    return {};
  const at::Tensor& data = call.inputs[0].data;
  return at::addmm(call.inputs[2].data, data.reshape({-1, data.size(-1)}), call.inputs[1].data)
      .view(call.outputs[0].sizes);
}

}  // namespace

Outputs run_einsum(OpCall& call) {
  const pg::Op& op = call.op;
  if (at::Tensor made = fully_connected(call); made.defined()) return {made};
  const std::size_t factors = op.inputs.size() - (op.bias ? 1 : 0);
  const auto& out = call.dims(op.outputs[0]);
  std::vector<int> letters, made;  // letters: dimensions in the order of their letters
  const auto letter_of = [&](int dim) {
    if (position(letters, dim) < 0) letters.push_back(dim);
    const int at = position(letters, dim);
    TRIREME_CHECK(at < 52, "operator {} has more than 52 dimensions", op.name);
    return static_cast<char>(at < 26 ? 'a' + at : 'A' + at - 26);
  };
  std::string equation;
  std::vector<at::Tensor> operands;
  bool first = true;  // of the ranks that hold summands of the output: the one that adds the bias
  for (std::size_t i = 0; i < factors; ++i) {
    const auto& dims = call.dims(op.inputs[i]);
    if (i > 0) equation += ',';
    for (std::size_t k = 0; k < dims.size(); ++k) {
      equation += letter_of(dims[k]);
      if (position(out, dims[k]) < 0) first = first && call.inputs[i].origin[k] == 0;
    }
    operands.push_back(call.inputs[i].data);
  }
  equation += "->";
  for (const int dim : out) {
    if (position(letters, dim) < 0) continue;
    equation += letter_of(dim);
    made.push_back(dim);
  }
  at::Tensor result = at::einsum(equation, operands);
  if (op.function == "mean") result = result / elements_of_mean(call);
  if (made.size() != out.size()) result = aligned(result, made, out).expand(call.outputs[0].sizes);
  if (op.bias && first) result = result + aligned(call.inputs.back().data, call.dims(op.inputs.back()), out);
  return {result.contiguous()};
}

}  // namespace trireme::spmd
