#include "trireme/train/engine/step_graph.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "trireme/base/log.h"

namespace trireme::train {
namespace {

constexpr int kRunsBeforeCapture = 2;     // libraries choose kernels and make tables in the first
constexpr std::size_t kMostCaptures = 4;  // more shapes than this: not worth their memory

/// What a layer may read of a context.
std::vector<at::Tensor*> tensors_of(nn::Context& context) {
  return {&context.samples,
          &context.targets,
          &context.loss_weights,
          &context.segments,
          &context.sequence.positions,
          &context.mtp.ids,
          &context.mtp.targets,
          &context.mtp.weights,
          &context.source.positions};
}

}  // namespace

StepGraph::StepGraph(models::Model& model, Gradients gradients) : model_(model), gradients_(std::move(gradients)) {}

bool StepGraph::can_capture(const nn::Context& context) const {
  // Delayed scales: the first step looks for the largest numbers, the others do not.
  for (const nn::Param& param : model_.params) {
    if (param.scales.defined() && !param.scales_known) return false;
  }
  const spec::ModelShape& shape = model_.shape;
  return shape.attention_dropout == 0 && !context.sequence.documents.defined() && !context.source.documents.defined() &&
         context.stash == nullptr;
}

StepGraph::Result StepGraph::run_plainly(nn::Tensors inputs, nn::Context& context) {
  context.losses_later = true;
  nn::Tape tape;
  model_.forward(std::move(inputs), context, &tape);
  Result result{.tape_bytes = tape.bytes()};
  model_.backward(context, tape);
  result.losses = std::move(context.losses);
  result.flops = context.flops;
  return result;
}

std::vector<std::int64_t> StepGraph::looks(const nn::Tensors& inputs, const nn::Context& context, Turn turn) const {
  std::vector<std::int64_t> looks{can_capture(context), turn.first, turn.last && gradients_.group != nullptr};
  for (const at::Tensor& tensor : inputs) looks.insert(looks.end(), tensor.sizes().begin(), tensor.sizes().end());
  nn::Context copy = context;
  for (const at::Tensor* tensor : tensors_of(copy)) looks.push_back(tensor->defined() ? tensor->numel() : -1);
  // Positions that a table must reach are part of how it looks.
  looks.push_back(context.sequence.position_count);
  looks.push_back(context.source.position_count);
  return looks;
}

StepGraph::Capture& StepGraph::find(std::vector<std::int64_t> looks) {
  for (const auto& captured : captures_) {
    if (captured->looks == looks) return *captured;
  }
  captures_.push_back(std::make_unique<Capture>());
  captures_.back()->looks = std::move(looks);
  return *captures_.back();
}

void StepGraph::capture(Capture& captured, const nn::Tensors& inputs, const nn::Context& context, Turn turn) {
  captured.context = context;
  // One rank is told at each replay; reductions begin while layers are captured, and are captured with them.
  captured.context.on_gradient = gradients_.group != nullptr ? gradients_.added : nullptr;
  for (const at::Tensor& tensor : inputs) captured.inputs.push_back(tensor.clone());
  const at::Device device = captured.inputs.at(0).device();
  const bool doubles = model_.params.begin()->value.scalar_type() == at::kDouble;  // masters may be elsewhere
  const at::ScalarType type = doubles ? at::kDouble : at::kFloat;
  captured.context.scale_on_device = at::full({1}, context.gradient_scale, at::TensorOptions(type).device(device));
  captured.context.sample_scale_on_device = at::full({1}, context.sample_scale, at::TensorOptions(type).device(device));
  captured.dropout_rng = std::make_unique<nn::DropoutRngState>(device);
  captured.context.dropout_rng = captured.dropout_rng.get();
  for (at::Tensor* tensor : tensors_of(captured.context)) {
    if (tensor->defined()) *tensor = tensor->clone();
  }
  const auto body = [&] {
    nn::Context own = captured.context;
    captured.result = run_plainly(captured.inputs, own);
    if (gradients_.group != nullptr && turn.last) gradients_.complete();
  };
  const auto make = [&] { captured.graph = std::make_unique<device::CudaGraph>(body); };
  if (gradients_.group == nullptr) return make();
  captured.calls = std::make_unique<comm::CapturedCollectives>(*gradients_.group, make);
}

StepGraph::Result StepGraph::run(nn::Tensors inputs, nn::Context context, Turn turn) {
  if (!can_capture(context)) return run_plainly(std::move(inputs), context);
  if (captures_.size() > kMostCaptures) return run_plainly(std::move(inputs), context);
  Capture& captured = find(looks(inputs, context, turn));
  if (captures_.size() > kMostCaptures) {
    log_warn("train.cuda_graphs: shapes of micro-batches differ from step to step, so they are no longer captured");
    captures_.resize(kMostCaptures + 1);
    for (auto& one : captures_) {
      one->calls.reset();
      one->graph.reset();
    }
    return run_plainly(std::move(inputs), context);
  }
  if (captured.seen++ < kRunsBeforeCapture) return run_plainly(std::move(inputs), context);
  model_.balance.refresh_gpu();
  if (!captured.graph) {
    capture(captured, inputs, context, turn);
  } else {
    for (std::size_t i = 0; i < inputs.size(); ++i) captured.inputs[i].copy_(inputs[i]);
    const auto from = tensors_of(context), to = tensors_of(captured.context);
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i]->defined()) to[i]->copy_(*from[i]);
    }
    captured.context.scale_on_device.fill_(context.gradient_scale);
    if (captured.context.sample_scale != context.sample_scale) {  // mostly the same from step to step
      captured.context.sample_scale = context.sample_scale;
      captured.context.sample_scale_on_device.fill_(context.sample_scale);
    }
  }
  captured.dropout_rng->fill(context.seed, context.step);
  if (captured.calls) {
    captured.calls->replay([&] { captured.graph->replay(); });
  } else {
    captured.graph->replay();
  }
  for (nn::Param& param : model_.params) {
    if (!param.trainable) continue;
    param.gradient_empty = false;
    for (int use = 0; gradients_.group == nullptr && use < param.uses; ++use) gradients_.added(param);
  }
  if (gradients_.group != nullptr && turn.last) gradients_.replayed();
  Result result = captured.result;
  // The next replay writes into the same memory.
  for (nn::LossTerm& term : result.losses) {
    if (term.pending.defined()) term.pending = term.pending.clone();
  }
  return result;
}

}  // namespace trireme::train
