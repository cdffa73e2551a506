// train/engine/weight_average.h -- weights to evaluate that are not those being trained.
//
// The exponential moving average (EMA) of optim.ema_decay is kept in fp32 (fp64), beside bf16 weights without masters
// too, lies as master weights do, and is part of checkpoints: "ema/PARAMETER". EvaluationWeights puts it, or the
// averaged weights of schedule-free-adamw, in place of the trained ones for a while; afterwards those are back, to the
// bit.
// Depends on: nn, optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trireme/nn/param.h"

namespace trireme::nn {
class State;
}
namespace trireme::optim {
class Optimizer;
}

namespace trireme::train {

class Engine;
class Updates;

class WeightAverage {
 public:
  /// Starts as the parameters are; borrowed.
  WeightAverage(nn::Params& params, double decay);
  /// After a step: average <- decay average + (1 - decay) weights.
  void update();
  std::int64_t bytes() const;
  const at::Tensor& of(std::size_t param) const { return averages_[param]; }
  void add_state(nn::State& state);

 private:
  nn::Params& params_;
  double decay_;
  std::vector<at::Tensor> averages_;  // one for each parameter; frozen ones undefined
};

/// While it lives, the engine computes with the average, or where that is null with the optimizer's evaluation weights.
/// On all ranks together. Late updates go on from what was computed with before.
class EvaluationWeights {
 public:
  EvaluationWeights(Engine& engine, Updates& updates, const optim::Optimizer& optimizer, const WeightAverage* average);
  ~EvaluationWeights();
  EvaluationWeights(const EvaluationWeights&) = delete;
  EvaluationWeights& operator=(const EvaluationWeights&) = delete;
  /// Puts the trained ones back; may throw what exchanging them does, where the destructor would not.
  void restore();

 private:
  Engine& engine_;
  Updates& updates_;
  std::vector<at::Tensor> computed_;  // with late updates: what is computed with while they train
  std::vector<at::Tensor> trained_;   // one for each parameter; undefined where nothing was exchanged
};

}  // namespace trireme::train
