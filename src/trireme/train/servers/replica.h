// train/servers/replica.h -- a whole model as one row of numbers: what replicas fetch, push and replay.
//
// Depends on: comm, data, train/engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/train/engine/train_state.h"
#include "trireme/train/servers/server_rule.h"

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
  /// What servers keep beside weights, as the optimizer has it: its moments, and pushes where they are counted.
  std::vector<std::vector<double>> planes();
  void set_planes(const std::vector<std::vector<double>>& planes);
  /// All keys, by parameter.
  const std::vector<KeyGroup>& groups() const { return groups_; }

  struct Gradient {
    std::vector<double> values;  ///< clipped as [optim] says
    double norm = 0;             ///< before
    std::vector<nn::LossTerm> losses;
    nn::LossCounts counts;
    double learning_rate = 0, flops = 0;
    double loss() const { return nn::total_of(losses, counts); }
  };
  /// Whether the part has rows: with more parts than rows some have none.
  bool has_rows(const spec::Position& at, int part) const { return !plan(at, part).microbatches.empty(); }
  /// Of a part of the step after `at`, at the weights that were set: the mean over the tokens of the part.
  Gradient compute(const spec::Position& at, int part);
  /// Of these rows of the step after number `step`: their part of the mean over `counts`. Not clipped.
  Gradient compute_rows(const std::vector<std::int64_t>& rows, std::int64_t step, const nn::LossCounts& counts);
  /// Where the step after `at` ends.
  spec::Position after(const spec::Position& at) const { return plan(at, 0).after; }
  TrainState& state() { return state_; }
  int parts() const { return parts_; }

 private:
  StepPlan plan(const spec::Position& at, int part) const;
  void compute_batches(std::vector<data::Batch>& batches, std::int64_t step, Gradient& gradient);

  TrainState& state_;
  const int parts_;
  std::uint64_t keys_ = 0;
  std::vector<KeyGroup> groups_;
};

/// Where filters hold something back, keys have had different numbers of pushes: they are part of what a run must
/// remember, from here on.
void count_pushes_by_key(TrainState& state);

/// Where each of the recipe's steps begins.
std::vector<spec::Position> step_positions(const Replica& replica, std::int64_t steps);

}  // namespace trireme::train
