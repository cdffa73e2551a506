// nn/moe/balance.h -- loads of experts over a step, and the biases that follow them (Wang et al. 2024, DeepSeek-V3).
//
// A bias is added to an expert's score when experts are chosen, and to nothing else. After each optimizer step it moves
// by a fixed rate against the load of that step: up where an expert got fewer choices than the mean, down where more.
// Loads are whole numbers summed over micro-batches and data-parallel ranks, biases are float in every precision: so
// all ranks have the same bits under every layout. They have no gradient, no decay and no part in the gradient norm,
// stay as they are in evaluation and in steps that are skipped, and stand in checkpoints as "router_bias/LAYER".
//
// Which experts lie on which rank, and copies of which (layout/expert_placement.h), is chosen from the loads of several
// steps. A run's own business: checkpoints hold experts by their number.
//
// Loads are counted in backward passes: there is one for each micro-batch of training whatever is recomputed, and none
// in evaluation.
// Depends on: base, layout, nn/state.h, gpu_loads.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/layout/placement.h"
#include "trireme/nn/moe/gpu_loads.h"
#include "trireme/nn/state.h"

namespace trireme::nn::moe {

/// bias_i += rate * sign(mean(counts) - counts_i), with sign(0) = 0; `centered`: less the mean of all afterwards.
void update_bias(std::span<float> bias, std::span<const std::int64_t> counts, double rate, bool centered);

/// How often it is decided where experts and copies of them lie, and what may be decided.
struct RebalancePolicy {
  std::int64_t every = 0;  ///< steps; 0: never
  std::int64_t ranks = 1;
  std::int64_t room = 0;        ///< of each rank, for copies
  bool moves = false;           ///< experts go to other ranks
  std::int64_t node_ranks = 0;  ///< neighbouring ranks that experts stay on; 0: any
};

/// Of one layer.
struct ExpertLoads {
  std::string layer;
  std::vector<std::int64_t> counts;  ///< [experts]: choices in this step so far, on this rank
  /// The same by step, where several are on their way at once: Balance::keep_steps().
  std::map<std::int64_t, std::vector<std::int64_t>> counts_of_steps = {};
  bool keeps_steps = false;
  std::vector<std::int64_t> last;    ///< of the step before, over all ranks
  at::Tensor bias = {};              ///< float [experts]; undefined: the router has none
  layout::Placement placement = {};  ///< of the bias: on all ranks that have the layer
  double rate = 0;
  bool centered = false;
  std::int64_t busy_ns = 0, busy_rows = 0;     ///< of this rank's experts in this step so far, forward and backward
  std::unique_ptr<GpuLoads> on_gpu = nullptr;  ///< where tokens are routed there: gpu()
  RebalancePolicy policy = {};
  std::vector<std::int64_t> order = {};   ///< [experts]: who lies in each place, rank by rank; empty: 0, 1, ...
  std::vector<std::int64_t> copies = {};  ///< layout::place_copies() of the last decision; empty: none was made
  std::vector<std::int64_t> since = {};   ///< [experts]: choices since then, over all ranks
  std::int64_t steps_since = 0;
  /// The order that was decided, with these copies, and is not yet that of the weights; empty: there is none. Whoever
  /// advances moves the experts before the next pass and calls moved().
  std::vector<std::int64_t> next_order = {};
  double busiest_before = 0, busiest_after = 0;  ///< its rank's load over the mean in both orders, without copies

  void add(std::span<const std::int64_t> of_micro) { add(of_micro, 0); }
  void add(std::span<const std::int64_t> of_micro, std::int64_t step);
  /// A step's `last` is known: decides on places and copies where it is time.
  void rebalance();
  std::int64_t moving() const;  ///< experts that go to another rank for it
  void moved() { order = std::exchange(next_order, {}); }
  /// Of `counts` [experts] those of each rank: of an expert with copies an even share.
  std::vector<std::int64_t> of_ranks(std::span<const std::int64_t> of_experts) const;
  /// Made by the first call.
  GpuLoads& gpu(at::Device device);
};

/// Choices of each expert in a step, over all ranks.
struct LayerLoads {
  std::string layer;
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> ranks = {};  ///< of each rank that experts are sharded over: ExpertLoads::of_ranks()
  double row_s = 0;  ///< what its experts take for a row, forward and backward, on average; 0: not measured
  /// Experts that move after this step, and the busiest rank's load over the mean before and after.
  std::int64_t moved = 0;
  double busiest_before = 0, busiest_after = 0;
  bool operator==(const LayerLoads&) const = default;
};

/// Of all layers of a rank; addresses stay.
class Balance {
 public:
  ExpertLoads& add(ExpertLoads loads);
  /// Steps run together: what is counted is told by step, and advance() is of the one that was chosen.
  void keep_steps();
  void choose_step(std::int64_t step);
  /// Of layers of the model that are on other ranks: every rank knows where their experts are.
  void follow(const RebalancePolicy& policy) { policy_ = policy; }
  /// Whether advance() counts for where experts and copies lie: not in a rehearsal.
  void set_deciding(bool deciding) { deciding_ = deciding; }
  bool empty() const { return layers_.empty(); }
  std::span<const std::int64_t> loads(std::size_t layer) const { return layers_.at(layer).last; }
  auto begin() { return layers_.begin(); }
  auto end() { return layers_.end(); }
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
  RebalancePolicy policy_;
  bool deciding_ = true;
  std::map<std::string, ExpertLoads> elsewhere_;  // their places and copies only
};

}  // namespace trireme::nn::moe
