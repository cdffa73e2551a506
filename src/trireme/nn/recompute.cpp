#include "trireme/nn/recompute.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/device/memory_pool.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/nn/activation_arena.h"
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

/// This rank's part of a tensor's numbers; the last ranks' are filled up, so that all are equally long.
at::Tensor kept_part(const at::Tensor& whole, comm::Group& group) {
  if (!whole.defined()) return whole;
  const at::Tensor flat = whole.contiguous().view({-1});
  const std::int64_t each = (flat.numel() + group.size() - 1) / group.size();
  const std::int64_t begin = std::min(flat.numel(), each * group.rank()), end = std::min(flat.numel(), begin + each);
  at::Tensor part = at::zeros({each}, flat.options());
  part.narrow(0, 0, end - begin).copy_(flat.narrow(0, begin, end - begin));
  return part;
}

at::Tensor gathered(const at::Tensor& part, at::IntArrayRef sizes, comm::Group& group) {
  if (!part.defined()) return part;
  at::Tensor all = at::empty({part.numel() * group.size()}, part.options());
  group.all_gather(device::to_const_buffer(part), device::to_buffer(all)).wait();
  const std::int64_t count = c10::multiply_integers(sizes);
  TRIREME_CHECK(count <= all.numel() && all.numel() - count < group.size(),
                "an input of {} elements that was kept in {} parts of {}", count, group.size(), part.numel());
  return all.narrow(0, 0, count).view(sizes);
}

/// Each tensor's part, and after them what their shapes were: [0, sizes], which hold no numbers.
void keep_parts(Tensors& tensors, comm::Group& group) {
  const std::size_t count = tensors.size();
  for (std::size_t i = 0; i < count; ++i) {
    at::Tensor shape;
    if (tensors[i].defined()) {
      std::vector<std::int64_t> sizes = tensors[i].sizes().vec();
      sizes.insert(sizes.begin(), 0);
      shape = at::empty(sizes, tensors[i].options());
    }
    tensors[i] = kept_part(tensors[i], group);
    tensors.push_back(std::move(shape));
  }
}

}  // namespace

void Recomputed::keep(Tensors kept, const Context& context, Tape& tape) const {
  Tensors rest;
  const RowDivision& division = context.division;
  const bool divides = division.rows > 0 && (partition_ != nullptr || context.stash != nullptr);
  for (at::Tensor& tensor : kept) {
    at::Tensor& other = rest.emplace_back();
    if (!divides || !tensor.defined()) continue;
    const std::int64_t first = tensor.size(0) / division.rows * division.first;
    other = tensor.narrow(0, first, tensor.size(0) - first);
    tensor = tensor.narrow(0, 0, first);
  }
  if (partition_ != nullptr) {
    keep_parts(kept, *partition_);
    keep_parts(rest, *partition_);
    for (Tensors* parts : {&kept, &rest}) {
      for (at::Tensor& part : *parts) part = context.arena != nullptr ? context.arena->keep(part) : part;
    }
  }
  if (divides) {
    tape.push(std::move(kept), std::move(rest), context.stash);
  } else if (context.stash != nullptr) {
    tape.push(std::move(kept), *context.stash);
  } else {
    tape.push(std::move(kept));
  }
}

Tensors Recomputed::forward(Tensors inputs, Context& context, Tape* tape) {
  if (tape && context.arena != nullptr && partition_ == nullptr) {
    // Passed on as well: what several blocks keep (an encoder's output) has one place.
    for (at::Tensor& input : inputs) input = context.arena->keep(input);
  }
  if (tape) keep(inputs, context, *tape);
  return layer_->forward(std::move(inputs), context, nullptr);
}

Tensors Recomputed::backward(Tensors gradients, Context& context, Tape& tape) {
  // As many inputs as outputs: blocks pass on what they are given.
  Tensors inputs = tape.pop((partition_ != nullptr ? 2 : 1) * gradients.size());
  if (partition_ != nullptr) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (inputs[i].defined())
        inputs[i] = gathered(inputs[i], inputs[gradients.size() + i].sizes().slice(1), *partition_);
    }
    inputs.resize(gradients.size());
  }
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

RecomputePlan plan_of(const Recompute& recompute, std::int64_t blocks) {
  RecomputePlan plan;
  const auto add = [&](std::int64_t length, bool runs_again) {
    const std::int64_t begin = plan.empty() ? 0 : plan.back().end;
    RecomputePart& part = plan.emplace_back(RecomputePart{.begin = begin, .end = begin + length});
    for (std::int64_t i = begin; i < part.end && runs_again; ++i) part.inside.push_back({.begin = i, .end = i + 1});
  };
  switch (recompute.kind) {
    case RecomputeKind::kRecursive:
      return recursive_plan(blocks);
    case RecomputeKind::kBudget:
      return plan_within(std::vector<BlockCost>(static_cast<std::size_t>(blocks), recompute.block), recompute.budget);
    case RecomputeKind::kSqrt:
      for (const std::int64_t length : sqrt_segments(blocks)) add(length, true);
      return plan;
    case RecomputeKind::kEvery:
      if (recompute.every < 1) throw ConfigError("recompute.every must be at least 1");
      break;
    default:
      break;
  }
  for (std::int64_t i = 0; i < blocks; ++i) {
    add(1, recompute.kind == RecomputeKind::kFull ||
               (recompute.kind == RecomputeKind::kEvery && i % recompute.every != 0));
  }
  return plan;
}

namespace {

/// The same parts further along the chain.
void shift(RecomputePlan& plan, std::int64_t by) {
  for (RecomputePart& part : plan) {
    part.begin += by;
    part.end += by;
    shift(part.inside, by);
  }
}

}  // namespace

RecomputePlan joined(std::vector<RecomputePlan> plans, std::span<const std::int64_t> stretches) {
  RecomputePlan all;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    shift(plans[i], begin);
    all.insert(all.end(), plans[i].begin(), plans[i].end());
    begin += stretches[i];
  }
  return all;
}

RecomputePlan plan_of(const Recompute& recompute, std::span<const std::int64_t> stretches) {
  std::vector<RecomputePlan> plans;
  for (const std::int64_t blocks : stretches) plans.push_back(plan_of(recompute, blocks));
  return joined(std::move(plans), stretches);
}

namespace {

/// The layers of a plan's parts, one each. `partition`: of Recomputed.
std::vector<std::unique_ptr<Layer>> layers_of(const RecomputePlan& plan, std::vector<std::unique_ptr<Layer>>& blocks,
                                              comm::Group* partition) {
  std::vector<std::unique_ptr<Layer>> layers;
  for (const RecomputePart& part : plan) {
    std::unique_ptr<Layer>& first = blocks[static_cast<std::size_t>(part.begin)];
    if (!part.recomputed() || first == nullptr) {
      layers.push_back(std::move(first));
      continue;
    }
    auto inside = layers_of(part.inside, blocks, partition);
    auto layer = inside.size() == 1 ? std::move(inside.front()) : std::make_unique<Chain>(std::move(inside));
    layers.push_back(std::make_unique<Recomputed>(std::move(layer), partition));
  }
  return layers;
}

}  // namespace

std::vector<std::unique_ptr<Layer>> recomputed(std::vector<std::unique_ptr<Layer>> blocks, const RecomputePlan& plan,
                                               comm::Group* partition) {
  return layers_of(plan, blocks, partition);
}

}  // namespace trireme::nn
