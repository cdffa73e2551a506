// pipeline/versions.h -- which weights a pass computes with: the present ones, kept ones, or predicted ones.
//
// A table's version instructions say everything about when (schedule/versions.h writes them, schedule/check.h holds
// them against the table's law); here they are obeyed. So the laws differ in their tables alone: flush and stale have
// no such instructions, stash and vertical sync keep what their micros still need, 2BW keeps one version beside the
// present. What a table cannot say is how weights are predicted: that is a WeightPredictor, one file each.
// Depends on: base, schedule, nn, optim.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "trireme/nn/context.h"
#include "trireme/optim/optimizer.h"
#include "trireme/pipeline/stage.h"

namespace trireme::pipeline {

/// How weights will be after some updates.
class WeightPredictor {
 public:
  virtual ~WeightPredictor() = default;
  /// In the master's type: the parameter after `updates` more steps in the direction of the last one. The present
  /// weights where no step was taken yet.
  virtual at::Tensor after(const nn::Param& param, int updates) = 0;
};

/// w - updates x rate x v (SpecTrain, equation 4), for SGD with momentum. `learning_rate` is asked at each prediction.
std::unique_ptr<WeightPredictor> predict_by_momentum(optim::Optimizer& optimizer,
                                                     std::function<double()> learning_rate);
/// w - updates x rate x m^ / (sqrt(v^) + eps) with corrected moments (XPipe, equation 3), for Adam and AdamW.
std::unique_ptr<WeightPredictor> predict_by_adam(optim::Optimizer& optimizer, std::function<double()> learning_rate);
/// The one that the table's law asks for; null where it predicts nothing.
std::unique_ptr<WeightPredictor> make_weight_predictor(schedule::WeightChoice law, optim::Optimizer& optimizer,
                                                       std::function<double()> learning_rate);

class WaveWeights;  // waves.h

class WeightVersions {
 public:
  /// `predictor` may be null where the table predicts nothing, `data_parallel` where nobody shards what it predicts
  /// from.
  WeightVersions(std::span<const Chunk> chunks, WeightPredictor* predictor, parallel::DataParallel* data_parallel);

  /// Before the table is walked (again): versions are counted from here, so what was predicted before is of no use.
  void begin();
  /// Obeys one of the four version instructions. `forward`: the next pass through its chunk is one. `present`: updates
  /// made so far.
  void execute(const schedule::Instruction& instruction, bool forward, int present);
  /// What the pass that begins now computes with; null: the present weights. `keep`: a backward follows that takes the
  /// same (this is its recomputation).
  nn::WeightSource* take(int chunk, int micro, bool keep);
  /// From now on each micro computes with weights of its own (borrowed).
  void use_waves(WaveWeights* waves) { waves_ = waves; }
  /// Copies of weights held now, over all chunks, the present ones not counted; and what they take.
  int copies() const;
  std::int64_t bytes() const;

 private:
  using Copy = std::vector<at::Tensor>;  // by parameter of the chunk
  struct Held final : nn::WeightSource {
    const Chunk* chunk = nullptr;
    int copies() const;
    std::unordered_map<const nn::Param*, std::size_t> index;
    std::map<int, Copy> stashed;
    struct Prediction {
      int version = -1;
      Copy copy;
    } predicted[2];  // for backwards, for forwards
    std::vector<Copy> unused;
    const Copy* next = nullptr;
    const Copy* now = nullptr;
    const at::Tensor& value(const nn::Param& param) override;
  };
  Held& held(int chunk);
  Copy copy_of(Held& held);
  void predict(const Held& held, int updates, Copy& copy);

  std::map<int, Held> held_;  // by chunk
  WeightPredictor* predictor_;
  parallel::DataParallel* data_parallel_;
  WaveWeights* waves_ = nullptr;
};

}  // namespace trireme::pipeline
