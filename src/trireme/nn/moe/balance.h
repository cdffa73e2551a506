// nn/moe/balance.h -- loads of experts over a step, and the biases that follow them (Wang et al. 2024, DeepSeek-V3).
//
// A bias is added to an expert's score when experts are chosen, and to nothing else. After each optimizer step it moves
// by a fixed rate against the load of that step: up where an expert got fewer choices than the mean, down where more.
// Loads are whole numbers summed over micro-batches and data-parallel ranks, biases are float in every precision: so
// all ranks have the same bits under every layout. They have no gradient, no decay and no part in the gradient norm,
// stay as they are in evaluation and in steps that are skipped, and stand in checkpoints as "router_bias/LAYER".
//
// Copies of hot experts (layout/expert_placement.h) are chosen from the loads of several steps; they are of these
// steps' layers only, so checkpoints know nothing of them.
//
// Loads are counted in backward passes: there is one for each micro-batch of training whatever is recomputed, and none
// in evaluation.
// Depends on: base, layout, nn/state.h, gpu_loads.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/layout/placement.h"
#include "trireme/nn/moe/gpu_loads.h"
#include "trireme/nn/state.h"

namespace trireme::nn::moe {

/// bias_i += rate * sign(mean(counts) - counts_i), with sign(0) = 0; `centered`: less the mean of all afterwards.
void update_bias(std::span<float> bias, std::span<const std::int64_t> counts, double rate, bool centered);

/// How often which experts have copies is decided, and where there is room.
struct CopyPolicy {
  std::int64_t every = 0;  ///< steps; 0: no copies
  std::int64_t ranks = 1, room = 0;
};

/// Of one layer.
struct ExpertLoads {
  std::string layer;
  std::vector<std::int64_t> counts;  ///< [experts]: choices in this step so far, on this rank
  std::vector<std::int64_t> last;    ///< of the step before, over all ranks
  at::Tensor bias = {};              ///< float [experts]; undefined: the router has none
  layout::Placement placement = {};  ///< of the bias: on all ranks that have the layer
  double rate = 0;
  bool centered = false;
  std::unique_ptr<GpuLoads> on_gpu = nullptr;  ///< where tokens are routed there: gpu()
  CopyPolicy copy_policy = {};
  std::vector<std::int64_t> copies = {};  ///< layout::place_copies() of the last decision; empty: none was made
  std::vector<std::int64_t> since = {};   ///< [experts]: choices since then, over all ranks
  std::int64_t steps_since = 0;

  void add(std::span<const std::int64_t> of_micro);
  /// A step's `last` is known: decides on copies where it is time.
  void decide_copies();
  /// Made by the first call.
  GpuLoads& gpu(at::Device device);
};

/// Choices of each expert in a step, over all ranks.
struct LayerLoads {
  std::string layer;
  std::vector<std::int64_t> counts;
  bool operator==(const LayerLoads&) const = default;
};

/// Of all layers of a rank; addresses stay.
class Balance {
 public:
  ExpertLoads& add(ExpertLoads loads);
  bool empty() const { return layers_.empty(); }
  std::span<const std::int64_t> loads(std::size_t layer) const { return layers_.at(layer).last; }
  auto begin() const { return layers_.begin(); }
  auto end() const { return layers_.end(); }

  /// The counts of all layers become their sums over the ranks that had other samples, in place.
  using Sum = std::function<void(std::span<std::int64_t> counts)>;
  /// After a step: moves biases where it was `taken`, and counts from 0 again. With `sum` on all ranks together that
  /// have these layers.
  void advance(bool taken, const Sum& sum = {});
  /// The same where ranks have different layers (pipeline stages), of `model` layers in all: the loads of every one of
  /// them, the same on all ranks.
  std::vector<LayerLoads> advance(bool taken, const std::vector<std::string>& model, std::size_t experts,
                                  const Sum& sum);
  void add_state(State& state);
  /// Copies of biases on a GPU become the biases: before a CUDA graph is replayed, whose layers do not ask.
  void refresh_gpu();

 private:
  std::deque<ExpertLoads> layers_;
};

}  // namespace trireme::nn::moe
