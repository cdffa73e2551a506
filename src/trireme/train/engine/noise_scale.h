// train/engine/noise_scale.h -- the gradient noise scale (McCandlish et al. 2018), from norms of two batch sizes.
//
// With |G_b|^2 of small batches of b tokens and |G_B|^2 of the whole batch of B, unbiased estimates of the true
// gradient's square and of the trace of its covariance are
//   |G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b),   S = (|G_b|^2 - |G_B|^2) / (1 / b - 1 / B).
// Each is averaged over steps by itself; the noise scale is the ratio of the averages, S / |G|^2, in tokens: the batch
// beyond which more tokens a step bring little. Small batches are the first micro-batch of each data-parallel rank;
// uneven ones are weighted, b being their harmonic mean. Of experts that are sharded over data-parallel ranks a small
// batch is that of all these ranks together, so b is larger for them; both estimates are sums over parameters, so those
// of dense ones and of experts are made apart and added. Neither clipping nor loss scale touches it, and no layout:
// stages of a pipeline sum what each has of a layer, ranks that share rows sum their gradients first.
// Depends on: base; a trainer's engine for measuring.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/observe/step_record.h"

namespace trireme::nn {
class State;
}

namespace trireme::train {

class Engine;

/// Of one step.
struct NoiseEstimate {
  double gradient_square = 0, trace = 0;
  NoiseEstimate operator+(const NoiseEstimate& other) const {
    return {gradient_square + other.gradient_square, trace + other.trace};
  }
};
/// `small_square`: the mean over small batches of |G_b|^2.
NoiseEstimate noise_estimate(double small_square, double small, double big_square, double big);

/// The two averages of one part of the model. A value: no ranks, no tensors.
class NoiseAverage {
 public:
  /// What is not finite is left out.
  void add(const NoiseEstimate& estimate, double decay);
  /// S / |G|^2; nothing before the first step, and while the average of |G|^2 is not above zero.
  std::optional<double> scale() const;
  double gradient_square() const { return weight_ > 0 ? gradient_ / weight_ : 0; }
  double trace() const { return weight_ > 0 ? trace_ / weight_ : 0; }

 private:
  friend class NoiseScale;
  double gradient_ = 0, trace_ = 0, weight_ = 0;  // weight_ corrects the bias of the first steps
};

/// "layers.3" of "layers.3.mlp.in.weight"; "embedding", "norm" and "head" of others.
std::string layer_of(const std::string& parameter);

class NoiseScale {
 public:
  /// From now on the engine takes norms of first micro-batches. On all ranks together; borrowed.
  NoiseScale(Engine& engine, double decay);

  /// After a step's gradients: `targets` of this rank's first micro-batch and of the whole step over all ranks,
  /// `whole_squares` of each trainable parameter's whole gradient of the mean loss (UpdateResult::squares),
  /// `loss_scale` what gradients are still multiplied by. Nothing is added where there was only one small batch, the
  /// whole. On all ranks together.
  void add(double first_targets, double all_targets, std::span<const double> whole_squares, double loss_scale);

  /// Of the whole model and of its layers, the same on all ranks.
  std::optional<double> scale() const { return whole_.scale(); }
  std::vector<observe::LayerNoise> layers() const;

  /// "train/noise_scale": all averages.
  void add_state(nn::State& state);

 private:
  struct Kind;

  Engine& engine_;
  double decay_;
  bool sharded_ = false;                  // experts are
  comm::Group* share_experts_ = nullptr;  // ranks that read other rows for the same experts; null: this one alone
  std::vector<std::string> names_;        // of layers
  std::vector<std::size_t> layer_of_;     // each trainable parameter's
  std::vector<NoiseAverage> averages_;    // of layers
  NoiseAverage whole_;
};

}  // namespace trireme::train
