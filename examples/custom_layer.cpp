// A layer of one's own: written as plain ATen operations, differentiated by autograd, beside hand-written layers.
//
//   build/release/examples/custom_layer
//
// AutogradLayer takes a differentiable function of inputs and parameters and makes it a Layer: it keeps its inputs on
// the tape and gives gradients like every other layer, so it can stand in any chain. Here: a gate that mixes a token
// with the one before it, in front of a small network that learns to add up neighbours.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/nn/autograd_layer.h"
#include "trireme/nn/linear.h"
#include "trireme/nn/mlp.h"
#include "trireme/optim/update.h"

using namespace trireme;

namespace {

/// x + sigmoid(gate) * (x one place earlier), for x [batch, length, width].
at::Tensor mix_with_previous(const at::Tensor& x, const at::Tensor& gate) {
  const at::Tensor earlier = at::cat({at::zeros_like(x.narrow(1, 0, 1)), x.narrow(1, 0, x.size(1) - 1)}, 1);
  return x + at::sigmoid(gate) * earlier;
}

}  // namespace

int main() try {
  constexpr std::int64_t kBatch = 16, kLength = 12, kWidth = 8;
  nn::Params params;
  nn::Param& gate = params.add("mix.gate", {kWidth}, {nn::Init::Kind::kZeros}, /*decay=*/false);
  nn::Param& weight = params.add("out.weight", {kWidth, kWidth}, {nn::Init::Kind::kNormal, 0.3}, /*decay=*/true);
  nn::initialise(params, nn::Precision::kFp32, /*seed=*/1);
  nn::AutogradLayer mix({&gate}, [](const nn::Tensors& inputs, const nn::Tensors& weights) {
    return nn::Tensors{mix_with_previous(inputs[0], weights[0])};
  });
  nn::Linear out(weight, /*bias=*/nullptr);
  spec::OptimConfig config;
  config.learning_rate = 0.03;
  const auto optimizer = optim::make_optimizer(config, params);

  const Random random(1, "example");
  at::Tensor x = at::empty({kBatch, kLength, kWidth});
  double loss = 0;
  for (int step = 0; step < 300; ++step) {
    random.fill_normal(static_cast<std::uint64_t>(step * x.numel()),
                       std::span(x.data_ptr<float>(), static_cast<std::size_t>(x.numel())));
    const at::Tensor wanted = x + at::cat({at::zeros_like(x.narrow(1, 0, 1)), x.narrow(1, 0, kLength - 1)}, 1);
    nn::Context context;
    nn::Tape tape;
    const at::Tensor y = out.forward(mix.forward({x}, context, &tape)[0], context, &tape);
    const at::Tensor error = y - wanted;
    loss = error.square().mean().item<double>();
    nn::zero_grad(params);
    mix.backward({out.backward(error * (2.0 / static_cast<double>(error.numel())), context, tape)}, context, tape);
    optim::update(*optimizer, {.learning_rate = config.learning_rate});
    if (step % 50 == 0) fmt::print("step {:3}  loss {:.4f}\n", step, loss);
  }
  fmt::print("after 300 steps {:.6f}; the gate opened to {:.2f}\n", loss,
             at::sigmoid(gate.master).mean().item<double>());
  return loss < 0.05 ? 0 : 1;
} catch (const Error& error) {
  fmt::print(stderr, "{}", error.block());
  return 1;
}
