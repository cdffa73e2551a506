// One step of an LSTM: gates are input, forget, cell and output, as PyTorch orders them. All of x and h meets a rank's
// units; gradients of x and h are then sums over units, those of weights over samples.
#include <ATen/ops/addcmul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros_like.h>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

struct Gates {
  at::Tensor input, forget, cell, output;
};

/// [rows, gates, units] as a matrix.
at::Tensor flat(const at::Tensor& weight) { return weight.view({weight.size(0), -1}); }

Gates gates_of(const at::Tensor& activated) {
  return {activated.select(1, 0), activated.select(1, 1), activated.select(1, 2), activated.select(1, 3)};
}

/// [n, gates, units]: x and h through their weights, and the gates' functions.
at::Tensor activated_gates(const at::Tensor& x, const at::Tensor& h, const at::Tensor& wx, const at::Tensor& wh,
                           const at::Tensor& bias) {
  at::Tensor sums = at::addmm(bias.reshape({1, -1}), x, flat(wx)).addmm_(h, flat(wh));
  sums = sums.view({x.size(0), bias.size(0), bias.size(1)});
  sums.narrow(1, 0, 2).sigmoid_();
  sums.select(1, 2).tanh_();
  sums.select(1, 3).sigmoid_();
  return sums;
}

}  // namespace

Outputs run_lstm(OpCall& call) {
  const pg::Op& forward = call.forward();
  std::vector<at::Tensor> in;  // x, h, c, w_x, w_h, bias
  for (const int tensor : forward.inputs) {
    const Block* block = call.operand(tensor);
    TRIREME_CHECK(block, "operator {} lacks {}", call.op.name, call.graph.tensor(tensor).name);
    in.push_back(block->data);
  }
  if (call.op.part == pg::Part::kForward) {
    const at::Tensor activated = activated_gates(in[0], in[1], in[3], in[4], in[5]);
    call.kept["gates"] = activated;
    const Gates gates = gates_of(activated);
    const at::Tensor cell = at::addcmul(gates.forget * in[2], gates.input, gates.cell);
    return {gates.output * at::tanh(cell), cell};
  }
  const Gates gates = gates_of(call.kept.at("gates"));
  const Block *cell = call.operand(forward.outputs[1]), *gradient_h = call.gradient(forward.outputs[0]),
              *gradient_c = call.gradient(forward.outputs[1]);
  TRIREME_CHECK(cell && (gradient_h || gradient_c), "operator {} lacks an operand", call.op.name);
  const at::Tensor squashed = at::tanh(cell->data);
  const at::Tensor gh = gradient_h ? gradient_h->data : at::zeros_like(squashed);
  at::Tensor gc = at::tanh_backward(gh * gates.output, squashed);
  if (gradient_c) gc = gc + gradient_c->data;
  at::Tensor sums = at::empty(call.kept.at("gates").sizes(), gc.options());
  sums.select(1, 0).copy_(at::sigmoid_backward(gc * gates.cell, gates.input));
  sums.select(1, 1).copy_(at::sigmoid_backward(gc * in[2], gates.forget));
  sums.select(1, 2).copy_(at::tanh_backward(gc * gates.input, gates.cell));
  sums.select(1, 3).copy_(at::sigmoid_backward(gh * squashed, gates.output));
  const at::Tensor by_sums = flat(sums);
  const std::vector<int> places = call.gradient_outputs();
  Outputs outputs(call.op.outputs.size());
  const auto set = [&](std::size_t input, const auto& make) {
    if (places[input] >= 0) outputs[static_cast<std::size_t>(places[input])] = make();
  };
  const auto of_weight = [&](std::size_t input, std::size_t weight) {
    set(weight, [&] {
      // Every time step has a part of it: the sum is what the GEMM adds to.
      const at::Tensor& sum = call.sums.empty() ? at::Tensor() : call.sums[static_cast<std::size_t>(places[weight])];
      if (!sum.defined()) return at::mm(in[input].t(), by_sums).view(in[weight].sizes());
      flat(sum).addmm_(in[input].t(), by_sums);
      return sum;
    });
  };
  set(0, [&] { return at::mm(by_sums, flat(in[3]).t()); });
  set(1, [&] { return at::mm(by_sums, flat(in[4]).t()); });
  set(2, [&] { return gc * gates.forget; });
  of_weight(0, 3);
  of_weight(1, 4);
  set(5, [&] { return at::sum(sums, 0); });
  for (at::Tensor& output : outputs) output = output.contiguous();
  return outputs;
}

}  // namespace trireme::spmd
