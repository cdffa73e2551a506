// kernels/update.h -- the optimizers' updates, each one pass over memory.
//
// All tensors of a call are contiguous and hold the same elements. Weights, gradients and moments are float (double for
// tests); `gradient` may also be bfloat16 or half, moments bfloat16. Where `low` is defined (bfloat16 or half) it
// receives the new weight rounded, in the same pass: the copy that layers compute with.
// Depends on: base.
#pragma once

#include <cstdint>

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
};

struct Sgd {
  double learning_rate, weight_decay = 0, momentum = 0, dampening = 0;
  bool nesterov = false;
  bool first = false;  ///< the first step: momentum starts as the gradient
};
/// Decay is added to the gradient (L2). `velocity` undefined without momentum.
void sgd_update(const UpdateTensors& tensors, at::Tensor& velocity, const Sgd& options);

struct Adagrad {
  double learning_rate, weight_decay = 0, epsilon = 1e-10;
};
void adagrad_update(const UpdateTensors& tensors, at::Tensor& sum, const Adagrad& options);

struct AdamW {
  double learning_rate, weight_decay = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  std::int64_t step = 1;  ///< from 1: for the correction of the moments' bias
  bool decoupled = true;  ///< decay of the weight itself (AdamW); false: added to the gradient (Adam)
};
void adamw_update(const UpdateTensors& tensors, at::Tensor& m, at::Tensor& v, const AdamW& options);

/// LAMB and LARS scale the update of a whole tensor by a ratio of norms, so each takes two passes: one that makes the
/// update in place and returns sums of squares, one that applies it.
struct NormPair {
  double weight_squared = 0, update_squared = 0;
};
/// Leaves the update (Adam's direction plus decay) in `update`.
NormPair lamb_direction(const UpdateTensors& tensors, at::Tensor& m, at::Tensor& v, at::Tensor& update,
                        const AdamW& options);
/// weight -= rate * update.
void apply_direction(const UpdateTensors& tensors, const at::Tensor& update, double rate);
/// Norms of the weight and the scaled gradient, for LARS; then sgd_update with the trust ratio in learning_rate.
NormPair lars_norms(const UpdateTensors& tensors);

/// Sum of squares in double, in a fixed order whatever the number of threads. NaN and infinity carry through.
double sum_of_squares(const at::Tensor& tensor);

}  // namespace trireme::kernels
