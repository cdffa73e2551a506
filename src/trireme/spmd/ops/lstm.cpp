// One step of an LSTM: gates are input, forget, cell and output, as PyTorch orders them. All of x and h meets a rank's
// units; gradients of x and h are then sums over units, those of weights over samples.
#include <ATen/ops/addcmul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "trireme/base/error.h"
#include "trireme/kernels/few_rows_gemm.h"
#include "trireme/kernels/lstm_cell.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

enum Input : std::size_t { kX, kH, kC, kWeightX, kWeightH, kBias };

struct Gates {
  at::Tensor input, forget, cell, output;
};

/// [rows, gates, units] as a matrix.
at::Tensor flat(const at::Tensor& weight) { return weight.reshape({weight.size(0), -1}); }

Gates gates_of(const at::Tensor& activated) {
  return {activated.select(1, 0), activated.select(1, 1), activated.select(1, 2), activated.select(1, 3)};
}

/// h and c of this step. Keeps the gates after their functions: [n, gates, units].
Outputs lstm_forward(OpCall& call, const std::vector<at::Tensor>& in) {
  const at::Tensor& bias = in[kBias];
  at::Tensor sums = call.input_sums.defined() ? call.input_sums : lstm_input_sums(in[kX], in[kWeightX], in[kBias]);
  const std::vector<std::int64_t> sizes{in[kX].size(0), bias.size(0), bias.size(1)};
  if (kernels::fits_few_rows_gemm(in[kH], flat(in[kWeightH]))) {
    kernels::add_few_rows_gemm(sums, in[kH], flat(in[kWeightH]), call.odd_cell);
  } else {
    sums.addmm_(in[kH], flat(in[kWeightH]));
  }
  sums = sums.view(sizes);
  if (kernels::fits_lstm_cell(sums) && sums.is_contiguous() && sums.size(1) == 4) {
    const kernels::LstmState state = kernels::lstm_cell(sums, in[kC]);
    call.kept["gates"] = sums;
    return {state.h, state.c};
  }
  sums.narrow(1, 0, 2).sigmoid_();
  sums.select(1, 2).tanh_();
  sums.select(1, 3).sigmoid_();
  call.kept["gates"] = sums;
  const Gates gates = gates_of(sums);
  const at::Tensor c = at::addcmul(gates.forget * in[kC], gates.input, gates.cell);
  return {gates.output * at::tanh(c), c};
}

/// Gradients of the gates before their functions, and of the cell that came in. Those of h and c may be undefined.
std::pair<at::Tensor, at::Tensor> gates_backward(const at::Tensor& activated, const at::Tensor& c_in,
                                                 const at::Tensor& c_out, const at::Tensor& gradient_h,
                                                 const at::Tensor& gradient_c) {
  if (kernels::fits_lstm_cell(activated) && activated.is_contiguous() && activated.size(1) == 4) {
    const kernels::LstmCellGrad grad = kernels::lstm_cell_backward(activated, c_in, c_out, gradient_h, gradient_c);
    return {flat(grad.gates), grad.c};
  }
  const Gates gates = gates_of(activated);
  const at::Tensor squashed = at::tanh(c_out);
  const at::Tensor gh = gradient_h.defined() ? gradient_h : at::zeros_like(squashed);
  at::Tensor gc = at::tanh_backward(gh * gates.output, squashed);
  if (gradient_c.defined()) gc = gc + gradient_c;
  at::Tensor sums = at::empty(activated.sizes(), gc.options());
  sums.select(1, 0).copy_(at::sigmoid_backward(gc * gates.cell, gates.input));
  sums.select(1, 1).copy_(at::sigmoid_backward(gc * c_in, gates.forget));
  sums.select(1, 2).copy_(at::tanh_backward(gc * gates.input, gates.cell));
  sums.select(1, 3).copy_(at::sigmoid_backward(gh * squashed, gates.output));
  return {flat(sums), gc * gates.forget};
}

}  // namespace

at::Tensor lstm_input_sums(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& bias) {
  return at::addmm(bias.reshape({1, -1}), rows, flat(weight));
}

at::Tensor lstm_input_gradients(const DeferredInputs& inputs) {
  return at::mm(inputs.gates.size() == 1 ? inputs.gates[0] : at::cat(inputs.gates), flat(inputs.weight).t());
}

Outputs run_lstm(OpCall& call) {
  const pg::Op& forward = call.forward();
  std::vector<at::Tensor> in;
  for (const int tensor : forward.inputs) {
    const Block* block = call.operand(tensor);
    TRIREME_CHECK(block, "operator {} lacks {}", call.op.name, call.graph.tensor(tensor).name);
    in.push_back(block->data);
  }
  if (call.op.part == pg::Part::kForward) return lstm_forward(call, in);
  const Block *cell = call.operand(forward.outputs[1]), *gradient_h = call.gradient(forward.outputs[0]),
              *gradient_c = call.gradient(forward.outputs[1]);
  TRIREME_CHECK(cell && (gradient_h || gradient_c), "operator {} lacks an operand", call.op.name);
  const auto [gates, c] =
      gates_backward(call.kept.at("gates"), in[kC], cell->data, gradient_h ? gradient_h->data : at::Tensor(),
                     gradient_c ? gradient_c->data : at::Tensor());
  const std::vector<int> places = call.gradient_outputs();
  Outputs outputs(call.op.outputs.size());
  const auto set = [&](std::size_t input, const auto& make) {
    if (places[input] >= 0) outputs[static_cast<std::size_t>(places[input])] = make().contiguous();
  };
  if (call.deferred_input && places[kX] >= 0) {
    call.deferred_input->tensors.push_back(call.op.outputs[static_cast<std::size_t>(places[kX])]);
    call.deferred_input->gates.push_back(gates);
    call.deferred_input->weight = in[kWeightX];
  } else {
    set(kX, [&] { return at::mm(gates, flat(in[kWeightX]).t()); });
  }
  set(kH, [&] {
    const at::Tensor weight = flat(in[kWeightH]);
    if (!kernels::fits_few_rows_gemm(gates, weight)) return at::mm(gates, weight.t());
    if (!call.deferred_input) return kernels::few_rows_gemm_transposed(gates, weight);
    DeferredInputs& layer = *call.deferred_input;  // once for all time steps
    if (!layer.recurrent.defined() || !layer.recurrent.is_same(in[kWeightH])) {
      layer.recurrent = in[kWeightH];
      layer.transposed = kernels::transposed_copy(weight);
    }
    at::Tensor out = at::zeros({gates.size(0), weight.size(0)}, gates.options());
    kernels::add_few_rows_gemm(out, gates, layer.transposed, call.odd_cell);
    return out;
  });
  set(kC, [&] { return c; });
  // Every time step has a part of the parameters' gradients, from its x or h and its gates.
  const auto of_parameter = [&](std::size_t parameter, const at::Tensor& left) {
    if (places[parameter] < 0) return;
    const auto output = static_cast<std::size_t>(places[parameter]);
    const auto sum_of = [sizes = in[parameter].sizes().vec()](const at::Tensor& rows, const at::Tensor& columns) {
      return (rows.defined() ? at::mm(rows.t(), columns) : at::sum(columns, 0)).view(sizes);
    };
    DeferredParts* parts = output < call.deferred.size() ? call.deferred[output] : nullptr;
    if (!parts) {
      outputs[output] = sum_of(left, gates);
      return;
    }
    if (left.defined()) parts->left.push_back(left);
    parts->right.push_back(gates);
    parts->sum_of = sum_of;
  };
  of_parameter(kWeightX, in[kX]);
  of_parameter(kWeightH, in[kH]);
  of_parameter(kBias, at::Tensor());
  return outputs;
}

}  // namespace trireme::spmd
