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
struct CrossEntropyCall {
  at::Tensor& logits;
  const at::Tensor& targets;
  const at::Tensor& gradient_scale;
  at::Tensor& losses;
  at::Tensor& z_losses;
  at::Tensor& lse;
};
void cross_entropy(const CrossEntropyCall& call, const CrossEntropy& options);

}  // namespace trireme::kernels
