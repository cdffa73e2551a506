// kernels/update.h -- the optimizers' updates, each one pass over memory.
//
// All tensors of a call are contiguous and hold the same elements. Weights and everything kept for them are float
// (double for tests, then all of them). `gradient` may also be bfloat16 or half; first moments and velocities may be
// bfloat16. Second moments may not: at beta2 = 0.999 a step changes them by less than bfloat16 can tell apart, and they
// would never fall again; nor may weights, beside whose last bit an update is nothing. Where `rounding` is given, all
// updates take bfloat16 weights, AdamW second moments too: they are then rounded up or down stochastically, and right
// in the mean (Gupta et al. 2015); on GPUs AdamW alone does. Where `low` is defined (bfloat16 or half) it receives the
// new weight rounded, in the same pass: the copy that layers compute with. Sums over a tensor have a fixed order,
// whatever the number of threads.
// Depends on: base.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace at {
class Tensor;
}

namespace trireme::kernels {

struct UpdateTensors {
  at::Tensor& weight;
  at::Tensor& gradient;  ///< multiplied by gradient_scale first (clipping, loss scale, 1/tokens); zeroed after if asked
  at::Tensor& low;
  double gradient_scale = 1;
  bool zero_gradient = false;  ///< leave zeros in `gradient` after reading it: spares a pass
  /// Not 0: a bfloat16 weight is stochastically rounded, as AdamW::rounding says of its own.
  std::uint64_t rounding = 0;
  const void* device_scalars =
      nullptr;  ///< on a GPU: what changes from step to step, in its memory (device_scalars.h); null: as given
};

struct Sgd {
  double learning_rate, weight_decay = 0, momentum = 0, dampening = 0;
  bool nesterov = false;
  bool first = false;  ///< the first step: the velocity starts as the gradient, whatever the tensor holds
};
/// As PyTorch's: decay is added to the gradient (L2), v = momentum v + (1 - dampening) g, weight -= rate v.
/// `velocity` is undefined without momentum.
void sgd_update(const UpdateTensors& tensors, at::Tensor& velocity, const Sgd& options);

struct Adagrad {
  double learning_rate, weight_decay = 0, epsilon = 1e-10;
};
/// `sum` of squared gradients.
void adagrad_update(const UpdateTensors& tensors, at::Tensor& sum, const Adagrad& options);

struct AdamW {
  double learning_rate, weight_decay = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  std::int64_t step = 1;  ///< from 1: for the correction of the moments' bias
  bool decoupled = true;  ///< decay of the weight itself (AdamW); false: added to the gradient (Adam)
  /// Not 0: what is kept as bfloat16 is stochastically rounded, which for element i is a function of this and i. Take
  /// another for every tensor and step; rounding_from() for a tensor that is a part of another.
  std::uint64_t rounding = 0;
  // CPU only: compressed momentum (1-bit Adam).
  std::int64_t variance_step = 0;     ///< not 0: v's bias is corrected as after so many updates of it
  bool freeze_variance = false;       ///< v stays as it is
  bool gradient_is_momentum = false;  ///< `gradient` is the new m
};
/// The key whose element 0 has the chance of element `first` of `key`; never 0.
std::uint64_t rounding_from(std::uint64_t key, std::int64_t first);
void adamw_update(const UpdateTensors& tensors, at::Tensor& m, at::Tensor& v, const AdamW& options);
/// Many at once: on a GPU a few launches for all of them.
struct AdamWUpdate {
  UpdateTensors tensors;
  at::Tensor &m, &v;
  AdamW options;
};
void adamw_updates(std::span<const AdamWUpdate> updates);

/// LAMB and LARS scale the update of a whole tensor by a ratio of norms, so each takes two passes with the norms in
/// between: where a tensor is spread over ranks, its sums of squares are added up there.
struct NormPair {
  double weight_squared = 0, update_squared = 0;
};

/// LAMB (You et al. 2019, algorithm 2), first pass: leaves m^ / (sqrt(v^) + epsilon) + decay * weight in `update`.
/// Writes neither weight nor `low`; the learning rate and `decoupled` are not used. `update` may be the gradient itself
/// where it is as wide as the weight.
NormPair lamb_direction(const UpdateTensors& tensors, at::Tensor& m, at::Tensor& v, at::Tensor& update,
                        const AdamW& options);
/// phi(|weight|) / |update|, where phi clips to [low, high]; 1 where either is 0.
double lamb_ratio(const NormPair& norms, double low = 0, double high = std::numeric_limits<double>::infinity());
/// Second pass: weight -= rate * update, with rate = learning rate * ratio. The gradient may be undefined.
void apply_direction(const UpdateTensors& tensors, const at::Tensor& update, double rate);

/// weight = wide, float numbers stochastically rounded to bfloat16: for updates that are several passes. CPU only.
void store_rounded(at::Tensor& weight, const at::Tensor& wide, std::uint64_t rounding);

/// LARS (You et al. 2017), first pass: norms of the weight and of the scaled gradient.
NormPair lars_norms(const UpdateTensors& tensors);
struct Lars {
  double learning_rate, weight_decay = 0, momentum = 0.9;
  double coefficient = 1e-3;  ///< the paper's eta: how far the norm of a weight may move in a step
};
/// coefficient |w| / (|g| + decay |w|); 1 where either is 0.
double lars_ratio(const NormPair& norms, const Lars& options);
/// Second pass: velocity = momentum * velocity + rate * ratio * (g + decay * weight), weight -= velocity. The ratio is
/// inside the velocity, so this is not sgd_update with another learning rate. `velocity` starts as zeros.
void lars_update(const UpdateTensors& tensors, at::Tensor& velocity, double ratio, const Lars& options);

/// Sum of squares in double, in a fixed order whatever the number of threads. NaN and infinity carry through.
double sum_of_squares(const at::Tensor& tensor);
/// Of each, all on one GPU: double [tensors] there, which nobody waits for.
at::Tensor sums_of_squares_on_device(std::span<const at::Tensor* const> tensors);
/// Of each; all on the CPU or all on one GPU, which is then waited for once.
std::vector<double> sums_of_squares(std::span<const at::Tensor* const> tensors);

}  // namespace trireme::kernels
