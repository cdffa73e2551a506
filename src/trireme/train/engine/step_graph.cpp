#include "trireme/train/engine/step_graph.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "trireme/base/log.h"

namespace trireme::train {
namespace {

constexpr int kRunsBeforeCapture = 2;       // libraries choose kernels and make tables in the first
constexpr std::size_t kMostRecordings = 4;  // more shapes than this: not worth their memory

/// What a layer may read of a context.
std::vector<at::Tensor*> tensors_of(nn::Context& context) {
  return {
      &context.samples,         &context.targets, &context.loss_weights, &context.segments, &context.sequence.positions,
      &context.source.positions};
}

}  // namespace

StepGraph::StepGraph(models::Model& model, Gradients gradients) : model_(model), gradients_(std::move(gradients)) {}

bool StepGraph::can_record(const nn::Context& context) const {
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
  std::vector<std::int64_t> looks{can_record(context), turn.first, turn.last && gradients_.group != nullptr};
  for (const at::Tensor& tensor : inputs) looks.insert(looks.end(), tensor.sizes().begin(), tensor.sizes().end());
  nn::Context copy = context;
  for (const at::Tensor* tensor : tensors_of(copy)) looks.push_back(tensor->defined() ? tensor->numel() : -1);
  // Positions that a table must reach are part of how it looks.
  looks.push_back(context.sequence.position_count);
  looks.push_back(context.source.position_count);
  return looks;
}

StepGraph::Recording& StepGraph::find(std::vector<std::int64_t> looks) {
  for (const auto& recording : recordings_) {
    if (recording->looks == looks) return *recording;
  }
  recordings_.push_back(std::make_unique<Recording>());
  recordings_.back()->looks = std::move(looks);
  return *recordings_.back();
}

void StepGraph::record(Recording& recording, const nn::Tensors& inputs, const nn::Context& context, Turn turn) {
  recording.context = context;
  // One rank is told at each replay; sums over ranks begin while layers are recorded, and are recorded with them.
  recording.context.on_gradient = gradients_.group != nullptr ? gradients_.added : nullptr;
  for (const at::Tensor& tensor : inputs) recording.inputs.push_back(tensor.clone());
  const at::Device device = recording.inputs.at(0).device();
  const bool doubles = model_.params.begin()->value.scalar_type() == at::kDouble;  // masters may be elsewhere
  const at::ScalarType type = doubles ? at::kDouble : at::kFloat;
  recording.context.scale_there = at::full({1}, context.gradient_scale, at::TensorOptions(type).device(device));
  recording.dropout_rng = std::make_unique<nn::DropoutRngState>(device);
  recording.context.dropout_rng = recording.dropout_rng.get();
  for (at::Tensor* tensor : tensors_of(recording.context)) {
    if (tensor->defined()) *tensor = tensor->clone();
  }
  const auto body = [&] {
    nn::Context own = recording.context;
    recording.result = run_plainly(recording.inputs, own);
    if (gradients_.group != nullptr && turn.last) gradients_.complete();
  };
  const auto make = [&] { recording.graph = std::make_unique<device::CudaGraph>(body); };
  if (gradients_.group == nullptr) return make();
  recording.calls = std::make_unique<comm::CapturedCollectives>(*gradients_.group, make);
}

StepGraph::Result StepGraph::run(nn::Tensors inputs, nn::Context context, Turn turn) {
  if (!can_record(context)) return run_plainly(std::move(inputs), context);
  if (recordings_.size() > kMostRecordings) return run_plainly(std::move(inputs), context);
  Recording& recording = find(looks(inputs, context, turn));
  if (recordings_.size() > kMostRecordings) {
    log_warn("train.cuda_graphs: micros look different from step to step, so they are not recorded any more");
    recordings_.resize(kMostRecordings + 1);
    for (auto& one : recordings_) {
      one->calls.reset();
      one->graph.reset();
    }
    return run_plainly(std::move(inputs), context);
  }
  if (recording.seen++ < kRunsBeforeCapture) return run_plainly(std::move(inputs), context);
  if (!recording.graph) {
    record(recording, inputs, context, turn);
  } else {
    for (std::size_t i = 0; i < inputs.size(); ++i) recording.inputs[i].copy_(inputs[i]);
    const auto from = tensors_of(context), to = tensors_of(recording.context);
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i]->defined()) to[i]->copy_(*from[i]);
    }
    recording.context.scale_there.fill_(context.gradient_scale);
  }
  recording.dropout_rng->fill(context.seed, context.step);
  if (recording.calls) {
    recording.calls->replay([&] { recording.graph->replay(); });
  } else {
    recording.graph->replay();
  }
  for (nn::Param& param : model_.params) {
    if (!param.trainable) continue;
    param.gradient_empty = false;
    for (int use = 0; gradients_.group == nullptr && use < param.uses; ++use) gradients_.added(param);
  }
  if (gradients_.group != nullptr && turn.last) gradients_.replayed();
  Result result = recording.result;
  // The next replay writes into the same memory.
  for (nn::LossTerm& term : result.losses) {
    if (term.pending.defined()) term.pending = term.pending.clone();
  }
  return result;
}

int StepGraph::recorded() const {
  return static_cast<int>(std::ranges::count_if(recordings_, [](const auto& one) { return one->graph != nullptr; }));
}

}  // namespace trireme::train
