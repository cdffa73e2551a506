// train/servers/batch_portions.h -- the batch that L-BFGS minimises the loss of, in portions that any rank can compute.
//
// The batch is that of the recipe's first step, for the whole run: L-BFGS is a batch method. A portion is a few rows of
// a step's batch and its part of the mean over all of them, so that a sum over portions in their order has the same
// bits whoever computed what.
// Depends on: ps (sandblaster.h), replica.h.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/ps/sandblaster.h"
#include "trireme/train/servers/replica.h"

namespace trireme::train {

/// Rows of a portion: train.micro_batch_size, or the batch cut for each of so many ranks into
/// train.gradient_accumulation_steps or the paper's 50.
std::int64_t portion_rows(const spec::Recipe& recipe, std::int64_t batch_rows, int ranks);

class BatchPortions {
 public:
  /// Rows of the first step's batch.
  static std::int64_t batch_rows(const TrainState& state);
  /// Borrowed; its engine computes alone. `world`: who counts the batch's tokens, all together; null: this rank alone.
  BatchPortions(TrainState& state, std::int64_t rows, comm::Group* world);

  int portions() const { return static_cast<int>(portions_.size()); }
  /// A portion's part of the loss, with its gradient added: ps::PortionLoss.
  double compute(int portion, std::span<const double> weights, std::span<double> gradient);
  /// Of the model.
  void set_weights(std::span<const double> weights);
  /// The model has other weights than were set here.
  void forget_weights() { weights_.clear(); }

  std::uint64_t keys() const { return replica_.keys(); }
  Replica& replica() { return replica_; }
  spec::Position after(const spec::Position& at) const { return replica_.after(at); }
  /// Since the last call: FLOPs of the model, and seconds that compute() took.
  struct Done {
    double flops = 0, seconds = 0;
  };
  Done take_done() { return std::exchange(done_, {}); }

 private:
  TrainState& state_;
  Replica replica_;
  std::vector<std::vector<std::int64_t>> portions_;
  nn::LossCounts counts_;
  std::vector<double> weights_;  // that the model has
  Done done_;
};

/// What train.mode = "sandblaster" computes, on one process without servers and commands: `state` is of a world of its
/// own, and is used.
struct SandblasterTwin {
  std::vector<double> losses, norms;  ///< by step
  std::vector<double> weights;
};
SandblasterTwin run_sandblaster_twin(TrainState& state, std::int64_t rows, std::int64_t steps);

}  // namespace trireme::train
