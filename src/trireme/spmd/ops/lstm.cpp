// One step of an LSTM: gates are input, forget, cell and output, as PyTorch orders them. All of x and h meets a rank's
// units; gradients of x and h are then sums over units, those of weights over samples.
#include <ATen/ops/einsum.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

#include "trireme/base/error.h"
#include "trireme/spmd/ops/kernels.h"

namespace trireme::spmd {
namespace {

struct Gates {
  at::Tensor input, forget, cell, output;
};

Gates gates_of(const at::Tensor& x, const at::Tensor& h, const at::Tensor& wx, const at::Tensor& wh,
               const at::Tensor& bias) {
  const at::Tensor sums = at::einsum("ni,igu->ngu", {x, wx}) + at::einsum("nr,rgu->ngu", {h, wh}) + bias;
  return {at::sigmoid(sums.select(1, 0)), at::sigmoid(sums.select(1, 1)), at::tanh(sums.select(1, 2)),
          at::sigmoid(sums.select(1, 3))};
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
  const Gates gates = gates_of(in[0], in[1], in[3], in[4], in[5]);
  if (call.op.part == pg::Part::kForward) {
    const at::Tensor cell = gates.forget * in[2] + gates.input * gates.cell;
    return {(gates.output * at::tanh(cell)).contiguous(), cell.contiguous()};
  }
  const Block *cell = call.operand(forward.outputs[1]), *gradient_h = call.gradient(forward.outputs[0]),
              *gradient_c = call.gradient(forward.outputs[1]);
  TRIREME_CHECK(cell && (gradient_h || gradient_c), "operator {} lacks an operand", call.op.name);
  const at::Tensor squashed = at::tanh(cell->data);
  const at::Tensor gh = gradient_h ? gradient_h->data : at::zeros_like(squashed);
  at::Tensor gc = gh * gates.output * (1 - squashed * squashed);
  if (gradient_c) gc = gc + gradient_c->data;
  const at::Tensor sums =
      at::stack({gc * gates.cell * gates.input * (1 - gates.input), gc * in[2] * gates.forget * (1 - gates.forget),
                 gc * gates.input * (1 - gates.cell * gates.cell), gh * squashed * gates.output * (1 - gates.output)},
                1);
  const std::vector<int> places = call.gradient_outputs();
  Outputs outputs(call.op.outputs.size());
  const auto set = [&](std::size_t input, const auto& make) {
    if (places[input] >= 0) outputs[static_cast<std::size_t>(places[input])] = make().contiguous();
  };
  set(0, [&] { return at::einsum("ngu,igu->ni", {sums, in[3]}); });
  set(1, [&] { return at::einsum("ngu,rgu->nr", {sums, in[4]}); });
  set(2, [&] { return gc * gates.forget; });
  set(3, [&] { return at::einsum("ni,ngu->igu", {in[0], sums}); });
  set(4, [&] { return at::einsum("nr,ngu->rgu", {in[1], sums}); });
  set(5, [&] { return at::sum(sums, 0); });
  return outputs;
}

}  // namespace trireme::spmd
