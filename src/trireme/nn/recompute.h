// nn/recompute.h -- memory for time: keep a layer's inputs only, and run it again before its backward pass.
//
// The second run gives the same bits: dropout is drawn by global token indices, and every operator's result depends on
// its inputs alone. So gradients are equal to the last bit with and without. Where the context has a Stash, kept inputs
// wait on the host. Ranks that have the same inputs may each keep a part and gather them in backward (ZeRO-R's
// partitioned activations, Rajbhandari et al. 2019).
// Depends on: base, comm, spec (which kinds there are).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/nn/layer.h"
#include "trireme/nn/recompute_plan.h"
#include "trireme/spec/train.h"

namespace trireme::nn {

/// A layer whose activations are recomputed in backward.
class Recomputed final : public Layer {
 public:
  /// `partition`: ranks with the same inputs, of which each keeps a part; null: all of them are kept here. Borrowed.
  explicit Recomputed(std::unique_ptr<Layer> layer, comm::Group* partition = nullptr)
      : layer_(std::move(layer)), partition_(partition) {}
  Tensors forward(Tensors inputs, Context& context, Tape* tape) override;
  Tensors backward(Tensors gradients, Context& context, Tape& tape) override;

 private:
  void keep(Tensors kept, const Context& context, Tape& tape) const;

  std::unique_ptr<Layer> layer_;
  comm::Group* partition_;
};

/// Layers one after the other.
class Chain final : public Layer {
 public:
  explicit Chain(std::vector<std::unique_ptr<Layer>> layers) : layers_(std::move(layers)) {}
  Tensors forward(Tensors inputs, Context& context, Tape* tape) override;
  Tensors backward(Tensors gradients, Context& context, Tape& tape) override;
  std::size_t size() const { return layers_.size(); }

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
};

using spec::RecomputeKind;

struct Recompute {
  RecomputeKind kind = RecomputeKind::kNone;
  std::int64_t every = 2;            ///< kEvery
  BlockCost block = {};              ///< kBudget: of each block
  BlockCost encoder_block = {};      ///< kBudget: of each block of an encoder beside a decoder
  double budget = 0;                 ///< kBudget: bytes
  comm::Group* partition = nullptr;  ///< of Recomputed
};

/// Of a chain of so many blocks; what is neither a segment nor recomputed saves.
RecomputePlan plan_of(const Recompute& recompute, std::int64_t blocks);
/// Of stretches of so many blocks one after the other, each planned by itself: the chunks of a pipeline.
RecomputePlan plan_of(const Recompute& recompute, std::span<const std::int64_t> stretches);
/// Plans of such stretches, each from 0 on, as one.
RecomputePlan joined(std::vector<RecomputePlan> plans, std::span<const std::int64_t> stretches);
/// Whether plan_of() looks at a chain as a whole, so that chunks of a pipeline are planned by themselves.
inline bool plans_chains(RecomputeKind kind) {
  return kind == RecomputeKind::kRecursive || kind == RecomputeKind::kBudget;
}

/// Wraps a model's blocks as planned: a layer for each part. A null block, which another rank has, keeps its place.
/// kSelective (AttentionShape::recompute_core) changes nothing here: blocks are built with it; kStage is in the table
/// of a pipeline. `partition`: of Recomputed.
std::vector<std::unique_ptr<Layer>> recomputed(std::vector<std::unique_ptr<Layer>> blocks, const RecomputePlan& plan,
                                               comm::Group* partition);

/// Lengths of Chen's segments over n blocks: about sqrt(n) of them, as equal as can be.
std::vector<std::int64_t> sqrt_segments(std::int64_t blocks);

}  // namespace trireme::nn
