// train/servers/replica.h -- a whole model as one row of numbers: what replicas fetch, push and replay.
//
// Depends on: comm, data, train/engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/train/engine/train_state.h"

namespace trireme::train {

/// A model alone in its world, with its part of each step.
class Replica {
 public:
  /// All borrowed. `positions[s]` is where step s + 1 begins.
  Replica(const spec::Recipe& recipe, const spec::ModelShape& shape, comm::Group& alone, const data::Samples& samples,
          int parts);

  std::uint64_t keys() const { return keys_; }
  std::vector<double> weights();
  void set_weights(const std::vector<double>& weights);

  struct Gradient {
    std::vector<double> values;
    double loss = 0, learning_rate = 0;
  };
  /// Of part `part` of step `step` (from 0), at the weights that were set.
  Gradient compute(std::int64_t step, int part);
  TrainState& state() { return state_; }

 private:
  TrainState state_;
  const int parts_;
  std::vector<spec::Position> positions_;
  std::uint64_t keys_ = 0;
};

/// Steps of the recipe.
std::vector<spec::Position> step_positions(const spec::Recipe& recipe, const Share& share);

}  // namespace trireme::train
