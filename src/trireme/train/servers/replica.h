// train/servers/replica.h -- a whole model as one row of numbers: what replicas fetch, push and replay.
//
// Depends on: comm, data, train/engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/train/engine/train_state.h"

namespace trireme::train {

/// A model that this rank holds all of, and its part of each step: what one rank of as many as there are parts would
/// take of it.
class Replica {
 public:
  /// Borrowed; its engine computes alone.
  Replica(TrainState& state, int parts);

  std::uint64_t keys() const { return keys_; }
  std::vector<double> weights();
  void set_weights(const std::vector<double>& weights);
  /// Adagrad's, as the optimizer has them; empty: its rule keeps none.
  std::vector<double> sums();
  void set_sums(const std::vector<double>& sums);

  struct Gradient {
    std::vector<double> values;
    std::vector<nn::LossTerm> losses;
    nn::LossCounts counts;
    double learning_rate = 0, flops = 0;
    double loss() const { return nn::total_of(losses, counts); }
    double norm() const;
  };
  /// Whether the part has rows: with more parts than rows some have none.
  bool has_rows(const spec::Position& at, int part) const { return !plan(at, part).microbatches.empty(); }
  /// Of a part of the step after `at`, at the weights that were set: the mean over the tokens of the part.
  Gradient compute(const spec::Position& at, int part);
  /// Where the step after `at` ends.
  spec::Position after(const spec::Position& at) const { return plan(at, 0).after; }
  TrainState& state() { return state_; }
  int parts() const { return parts_; }

 private:
  StepPlan plan(const spec::Position& at, int part) const;

  TrainState& state_;
  const int parts_;
  std::uint64_t keys_ = 0;
};

/// Where each of the recipe's steps begins.
std::vector<spec::Position> step_positions(const Replica& replica, std::int64_t steps);

}  // namespace trireme::train
