// pipeline/versions.h -- which weights a pass computes with: the present ones, kept ones, or predicted ones.
//
// A table's version instructions say everything about when (schedule/versions.h writes them, schedule/check.h holds
// them against the table's law); here they are obeyed. So the laws differ in their tables alone: flush and stale have
// no such instructions, stash and vertical sync keep what their micros still need, 2BW keeps one version beside the
// present. What a table cannot say is how weights are predicted: that is a WeightPredictor, one file each.
// With ZeRO 3 a version is sharded as the present weights are: each rank keeps its part, and layers gather it.
// Depends on: base, schedule, nn, optim, parallel.
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

class ScaleVersions;  // scale_versions.h
class WaveWeights;    // waves.h

class WeightVersions {
 public:
  /// `predictor` may be null where the table predicts nothing, `data_parallel` where nobody shards weights.
  WeightVersions(const schedule::Schedule& table, std::span<const Chunk> chunks, WeightPredictor* predictor,
                 parallel::DataParallel* data_parallel);

  /// Before the table is executed (again): versions are counted from here, so what was predicted before is of no use.
  void begin();
  /// After it: whoever computes from here on takes the present weights.
  void end();
  /// Obeys one of the four version instructions. `forward`: the next pass through its chunk is one.
  void execute(const schedule::Instruction& instruction, bool forward);
  /// An update was made: the present weights are the next version.
  void updated();
  /// What micros of later steps than this have done is taken back.
  void rewind(int step);
  /// What the pass that begins now computes with; null: the present weights. `keep`: a backward follows that takes the
  /// same (this is its recomputation).
  nn::WeightSource* take(int chunk, int micro, bool keep);
  /// From now on each micro computes with weights of its own (borrowed).
  void use_waves(WaveWeights* waves) { waves_ = waves; }
  /// Delayed FP8 scales go with versions from now on (borrowed; null: there are none).
  void use_scales(ScaleVersions* scales) { scales_ = scales; }
  /// Copies of weights held now, over all chunks, the present ones not counted; and what they take.
  int copies() const;
  std::int64_t bytes() const;

 private:
  using Copy = std::vector<at::Tensor>;  // by parameter of the chunk; with ZeRO 3 this rank's part, by bucket
  struct Held final : nn::WeightSource {
    const Chunk* chunk = nullptr;
    bool gathered = false;  // versions are sharded: layers have what they gathered
    int copies() const;
    std::unordered_map<const nn::Param*, std::size_t> index;
    std::map<int, Copy> stashed;
    struct Prediction {
      int version = -1;
      int made_at = 0;  // updates before
      Copy copy;
    } predicted[2];  // for backwards, for forwards
    std::vector<Copy> unused;
    const Copy* next = nullptr;
    int next_made_at = 0;
    const Copy* now = nullptr;  // null: the present ones
    const at::Tensor& value(const nn::Param& param) override;
  };
  Held& held(int chunk);
  /// What is computed with now, where a copy of it belongs.
  Copy present(const Held& held) const;
  Copy copy_of(Held& held);
  void predict(const Held& held, int updates, Copy& copy);

  const schedule::Schedule& table_;
  std::map<int, Held> held_;  // by chunk
  WeightPredictor* predictor_;
  parallel::DataParallel* data_parallel_;
  WaveWeights* waves_ = nullptr;
  ScaleVersions* scales_ = nullptr;
  bool sharded_;
  int updates_ = 0;  // since begin()
};

}  // namespace trireme::pipeline
