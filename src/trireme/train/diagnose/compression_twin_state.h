// train/diagnose/compression_twin_state.h -- the twin's state: weights and optimizers of each copy, and what methods
// keep.
//
// compression_twin.cpp computes gradients and takes the steps in which copies exchange something,
// compression_twin_local.cpp those of local updates.
// Depends on: compression_twin, twin_methods.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/data/open_samples.h"
#include "trireme/models/model.h"
#include "trireme/optim/update.h"
#include "trireme/train/diagnose/compression_twin.h"
#include "trireme/train/diagnose/twin_methods.h"
#include "trireme/train/engine/teacher.h"
#include "trireme/train/engine/train_state.h"

namespace trireme::train {

/// A model whose parameters can be given any copy's weights, and what is kept of each copy.
class CompressionTwin {
 public:
  explicit CompressionTwin(const TwinRequest& request);
  TwinTrace run();

 private:
  void advance_balance();
  void tell_biases();
  struct CopyStep {
    NamedTensors gradients;  // parts of the mean over all tokens
  };
  std::vector<CopyStep> compute(double& learning_rate);
  nn::Params& params() { return model_->params; }
  std::vector<nn::Param*> trainable();
  bool drifts() const { return spec::lets_copies_drift(config_.kind); }

  // What becomes of a step's gradients.
  void compressed_step(const std::vector<CopyStep>& copies, double rate);
  void onebit_adam_step(const std::vector<CopyStep>& copies, double rate);
  void zero_one_adam_step(const std::vector<CopyStep>& copies, double rate);
  void local_step(const std::vector<CopyStep>& copies, double rate);
  void local_sgd_round(double rate);
  void average_moments();
  at::Tensor rounded(const at::Tensor& flat) const;
  NamedTensors rounded_mean(const std::vector<NamedTensors>& deltas);
  void elastic_round();
  void diloco_rounds();

  NamedTensors summed(const std::vector<CopyStep>& copies, bool dense);
  /// `mean`: of copies that hold parts of the same experts, which have one input together, else their sum.
  std::vector<TwinInput> inputs_of(const std::vector<NamedTensors>& copies, bool mean = false) const;
  at::Tensor part_of(const parallel::CompressedPart& part, const at::Tensor& whole) const;
  void put_part(const parallel::CompressedPart& part, const at::Tensor& values, at::Tensor& whole) const;
  void give(const NamedTensors& gradients);
  double update(optim::Optimizer& optimizer, const NamedTensors& gradients, double rate);
  void load(const NamedTensors& weights);
  NamedTensors masters();
  /// Adam by its formulas; `m` given or moved by the gradient, `v` frozen or not.
  struct AdamState {
    NamedTensors m, v;
  };
  void adam_update(NamedTensors& weights, const AdamState& state, double rate, std::int64_t steps,
                   std::int64_t updates);
  double clipped(NamedTensors& gradients) const;
  NamedTensors mean_of(const std::vector<NamedTensors>& copies) const;

  const TwinRequest& request_;
  spec::Recipe recipe_;  // without its layout
  const spec::CompressConfig& config_;
  std::unique_ptr<data::Samples> samples_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<Teacher> teacher_;  // null without [distill]
  std::vector<std::unique_ptr<Feeder>> feeders_;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;  // one for each copy that drifts, else one
  std::vector<NamedTensors> weights_;                          // of copies that drift
  NamedTensors newest_;  // late updates: masters, one update ahead of what is computed with; empty where none is
  TwinMethods methods_;
  std::int64_t step_ = 0;
  TwinTrace trace_;

  std::vector<AdamState> adam_;  // of 1-bit and 0/1 Adam, by copy
  std::int64_t frozen_at_ = 0, updates_ = 0, next_update_ = 0, since_ = 0;
  double rates_ = 0;
  std::vector<NamedTensors> steps_sum_;
  NamedTensors anchor_, outer_momentum_;
  std::map<int, std::pair<std::int64_t, NamedTensors>> on_their_way_;  // DiLoCo: by fragment, when and what
  std::vector<NamedTensors> residuals_;
};

}  // namespace trireme::train
