#include "trireme/nn/recompute.h"

#include <cmath>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_pool.h"
#include "trireme/nn/flops.h"

namespace trireme::nn {
namespace {

/// While a layer that was run again goes back, what its forward left is in memory beside the tape's own frames.
class CountActivations {
 public:
  CountActivations(const Context& context, const Tape& tape)
      : memory_(context.memory), bytes_(memory_ != nullptr ? tape.bytes() : 0) {
    if (memory_ != nullptr) memory_->device.add(device::MemoryUse::kActivations, bytes_);
  }
  ~CountActivations() {
    if (memory_ != nullptr) memory_->device.add(device::MemoryUse::kActivations, -bytes_);
  }
  CountActivations(const CountActivations&) = delete;
  CountActivations& operator=(const CountActivations&) = delete;

 private:
  device::RankMemory* memory_;
  std::int64_t bytes_;
};

}  // namespace

Tensors Recomputed::forward(Tensors inputs, Context& context, Tape* tape) {
  if (tape && context.stash) {
    tape->push(inputs, *context.stash);
  } else if (tape) {
    tape->push(inputs);
  }
  return layer_->forward(std::move(inputs), context, nullptr);
}

Tensors Recomputed::backward(Tensors gradients, Context& context, Tape& tape) {
  // As many inputs as outputs: blocks pass on what they are given.
  Tensors inputs = tape.pop(gradients.size());
  Tape again;
  const std::size_t losses = context.losses.size();
  {
    const CountAsRecomputed count(context);
    layer_->forward(std::move(inputs), context, &again);
  }
  context.losses.resize(losses);  // counted in the first run
  again.set_deferring(tape.deferring());
  const CountActivations counted(context, again);
  Tensors out = layer_->backward(std::move(gradients), context, again);
  TRIREME_CHECK(again.empty(), "a recomputed layer left frames on its tape");
  if (again.deferring()) {
    // shared: std::function copies what it holds, and a tape is not for copying.
    auto rest = std::make_shared<Tape>(std::move(again));
    tape.weight_gradient([rest] { rest->run_weight_gradients(); });
  }
  return out;
}

Tensors Chain::forward(Tensors inputs, Context& context, Tape* tape) {
  for (auto& layer : layers_) inputs = layer->forward(std::move(inputs), context, tape);
  return inputs;
}

Tensors Chain::backward(Tensors gradients, Context& context, Tape& tape) {
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    gradients = (*layer)->backward(std::move(gradients), context, tape);
  }
  return gradients;
}

std::vector<std::int64_t> sqrt_segments(std::int64_t blocks) {
  if (blocks <= 0) return {};
  const auto count = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(blocks))));
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) lengths.push_back((i + 1) * blocks / count - i * blocks / count);
  return lengths;
}

std::vector<std::unique_ptr<Layer>> recomputed(std::vector<std::unique_ptr<Layer>> blocks, const Recompute& recompute) {
  std::vector<std::unique_ptr<Layer>> out;
  switch (recompute.kind) {
    case RecomputeKind::kNone:
    case RecomputeKind::kSelective:
      return blocks;
    case RecomputeKind::kFull:
      for (auto& block : blocks) out.push_back(std::make_unique<Recomputed>(std::move(block)));
      return out;
    case RecomputeKind::kEvery: {
      if (recompute.every < 1) throw ConfigError("recompute.every must be at least 1");
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const bool kept = i % static_cast<std::size_t>(recompute.every) == 0;
        out.push_back(kept ? std::move(blocks[i]) : std::make_unique<Recomputed>(std::move(blocks[i])));
      }
      return out;
    }
    case RecomputeKind::kSqrt: {
      auto next = blocks.begin();
      for (const std::int64_t length : sqrt_segments(static_cast<std::int64_t>(blocks.size()))) {
        std::vector<std::unique_ptr<Layer>> segment(std::make_move_iterator(next),
                                                    std::make_move_iterator(next + length));
        next += length;
        out.push_back(std::make_unique<Recomputed>(std::make_unique<Chain>(std::move(segment))));
      }
      return out;
    }
  }
  return blocks;
}

}  // namespace trireme::nn
