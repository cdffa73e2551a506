// bench/random_step.h -- what training steps on random tokens are made of: the tokens, a context, a pass with or
// without a CUDA graph.
#pragma once

#include <ATen/ops/randint.h>

#include <cstdint>
#include <utility>

#include "trireme/models/model.h"
#include "trireme/train/engine/step_graph.h"

namespace trireme::bench {

/// Sequences of a step, on a device: each token's target is the next one.
struct RandomTokens {
  RandomTokens(std::int64_t vocab_size, std::int64_t batch, std::int64_t seq_len, at::Device device)
      : ids(at::randint(vocab_size, {batch, seq_len + 1}, at::TensorOptions(at::kLong)).to(device)),
        inputs(ids.narrow(1, 0, seq_len).contiguous()),
        targets(ids.narrow(1, 1, seq_len).contiguous()),
        sequence(nn::plain_sequence(batch, seq_len)),
        count(batch * seq_len) {
    sequence.positions = sequence.positions.to(device);
    sequence.position_count = seq_len;
  }

  nn::Context context() const {
    nn::Context context;
    context.training = true;
    context.losses_later = true;
    context.sequence = sequence;
    context.targets = targets;
    context.gradient_scale = 1.0 / static_cast<double>(count);
    return context;
  }

  at::Tensor ids, inputs, targets;
  nn::Sequence sequence;
  std::int64_t count;
};

/// Losses and FLOPs are in `context` afterwards. `graph` captures the passes and replays them; null: they are run.
inline void forward_backward(models::Model& model, train::StepGraph* graph, const at::Tensor& inputs,
                             nn::Context& context) {
  if (graph != nullptr) {
    nn::zero_grad(model.params);
    train::StepGraph::Result result = graph->run({inputs}, context, {});
    context.losses = std::move(result.losses);
    context.flops = result.flops;
    return;
  }
  nn::Tape tape;
  model.forward({inputs}, context, &tape);
  model.backward(context, tape);
}

}  // namespace trireme::bench
