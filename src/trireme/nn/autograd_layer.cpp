#include "trireme/nn/autograd_layer.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "trireme/base/error.h"

namespace trireme::nn {
namespace {

at::Tensor leaf(const at::Tensor& tensor, bool wanted) {
  at::Tensor out = tensor.detach();
  if (wanted && tensor.is_floating_point()) out.requires_grad_(true);
  return out;
}

}  // namespace

AutogradLayer::AutogradLayer(std::vector<Param*> params, Function function)
    : params_(std::move(params)), function_(std::move(function)) {
  for (Param* param : params_) ++param->uses;
}

Tensors AutogradLayer::forward(Tensors inputs, Context& context, Tape* tape) {
  const c10::AutoGradMode mode(tape != nullptr);
  Tensors in, weights;
  for (const at::Tensor& input : inputs) in.push_back(leaf(input, tape != nullptr));
  for (Param* param : params_) weights.push_back(leaf(context.value(*param), tape != nullptr && param->trainable));
  Tensors outputs = function_(in, weights);
  if (!tape) return outputs;
  // The frame keeps the graph alive: leaves, then outputs, then how many of each.
  Tensors frame = in;
  frame.insert(frame.end(), weights.begin(), weights.end());
  frame.insert(frame.end(), outputs.begin(), outputs.end());
  tape->push(std::move(frame));
  tape->push({at::scalar_tensor(static_cast<std::int64_t>(in.size()), at::kLong),
              at::scalar_tensor(static_cast<std::int64_t>(outputs.size()), at::kLong)});
  for (at::Tensor& output : outputs) output = output.detach();
  return outputs;
}

Tensors AutogradLayer::backward(Tensors gradients, Context& context, Tape& tape) {
  const auto counts = tape.pop<2>();
  const auto inputs = counts[0].item<std::int64_t>(), outputs = counts[1].item<std::int64_t>();
  const auto weights = static_cast<std::int64_t>(params_.size());
  const Tensors frame = tape.pop(static_cast<std::size_t>(inputs + weights + outputs));
  TRIREME_CHECK(gradients.size() == static_cast<std::size_t>(outputs), "{} gradients for {} outputs", gradients.size(),
                outputs);
  Tensors leaves, results, seeds;
  std::vector<std::int64_t> which;
  for (std::int64_t i = 0; i < inputs + weights; ++i) {
    if (!frame[i].requires_grad()) continue;
    leaves.push_back(frame[i]);
    which.push_back(i);
  }
  for (std::int64_t i = 0; i < outputs; ++i) {
    const at::Tensor& result = frame[inputs + weights + i];
    if (!result.requires_grad() || !gradients[i].defined()) continue;
    results.push_back(result);
    seeds.push_back(gradients[i]);
  }
  Tensors out(static_cast<std::size_t>(inputs));
  if (leaves.empty() || results.empty()) return out;
  const c10::AutoGradMode mode(true);
  const Tensors found = torch::autograd::grad(results, leaves, seeds, /*retain_graph=*/false, /*create_graph=*/false,
                                              /*allow_unused=*/true);
  for (Param* param : params_) context.begin_adding(*param);
  for (std::size_t i = 0; i < which.size(); ++i) {
    if (which[i] < inputs) {
      out[which[i]] = found[i];
    } else if (found[i].defined()) {
      add_gradient(*params_[which[i] - inputs], found[i]);
    }
  }
  for (Param* param : params_) {
    context.end_adding(*param);
    context.added(*param);
  }
  return out;
}

}  // namespace trireme::nn
