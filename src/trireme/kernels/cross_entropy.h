// kernels/cross_entropy.h -- softmax cross-entropy on a chunk of logits, value and gradient in one visit.
//
// Depends on: base.
#pragma once

#include <cstdint>

namespace at {
class Tensor;
}

namespace trireme::kernels {

struct CrossEntropy {
  double label_smoothing = 0;  ///< (1 - a) on the target, a / vocabulary on every class
  double z_loss = 0;           ///< adds z_loss * log(sum exp)^2
  std::int64_t ignore = -100;  ///< targets with this number take no part
};

/// `logits` [rows, vocabulary] float, double, bfloat16 or half, any stride between rows; `targets` int64 [rows]. Writes
/// per row, in float (double for double), `losses` (cross-entropy with smoothing) and, where they are defined, `lse`
/// (log-sum-exp) and `z_losses`; all are 0 where the target is ignored. With `gradient_scale` (float or double [rows],
/// the weight of each row's loss in the total, loss scale included) defined, overwrites logits with the gradient of
/// sum(scale * (loss + z_loss)), zeros where ignored. Logits are read once for the values, once more for the gradient.
/// A target that is no class is a ConfigError; on a GPU, where nobody waits for it, its row's loss is NaN or Inf.
struct CrossEntropyCall {
  at::Tensor& logits;
  const at::Tensor& targets;
  const at::Tensor& gradient_scale;
  at::Tensor& losses;
  at::Tensor& z_losses;
  at::Tensor& lse;
};
void cross_entropy(const CrossEntropyCall& call, const CrossEntropy& options);

/// Where each rank has a slice of the classes (Shoeybi et al. 2019), in two visits. `logits` [rows, classes of the
/// slice]; `targets` int64 [rows], numbers within the slice, any other for a class elsewhere. Values: per row the
/// slice's log-sum-exp, the target's logit (0 elsewhere) and, where defined, the sum of its logits. The whole row's
/// log-sum-exp is that of the slices'; hits and sums add up.
struct CrossEntropySliceValues {
  const at::Tensor& logits;
  const at::Tensor& targets;
  at::Tensor& lse;
  at::Tensor& hits;
  at::Tensor& sums;
};
void cross_entropy_slice_values(const CrossEntropySliceValues& call);
/// Overwrites logits with the gradient of sum(scale * (loss + z_loss)); `lse` is of all `vocabulary` classes; scale 0:
/// zeros.
struct CrossEntropySliceGradients {
  at::Tensor& logits;
  const at::Tensor& targets;
  const at::Tensor& scale;
  const at::Tensor& lse;
  std::int64_t vocabulary;
};
void cross_entropy_slice_gradients(const CrossEntropySliceGradients& call, const CrossEntropy& options);

}  // namespace trireme::kernels
