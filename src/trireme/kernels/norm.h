// kernels/norm.h -- layer and root-mean-square normalisation over the last dimension, with the residual sum they
// follow.
//
// x is [.., width], contiguous rows with any one stride between them; float, double, bfloat16 or half, and so are the
// other tensors of its shape. Weights are of x's type or float. Statistics are float (double for double) and computed
// in two passes over a row that is in the cache. Sums over rows (gradients of weights) have a fixed order, whatever the
// number of threads.
// Depends on: base.
#pragma once

namespace at {
class Tensor;
}

namespace trireme::kernels {

enum class NormKind { kLayer, kRms };

struct Norm {
  NormKind kind = NormKind::kLayer;
  double epsilon = 1e-5;
  /// Gemma's and some others' convention: the stored weight is added to one.
  bool unit_offset = false;
};

/// y = norm(x) * weight + bias. `weight`, `bias` may be undefined. `mean` (layer norm only; may be undefined otherwise)
/// and `rstd` are float (double) [rows]; undefined tensors are not written (inference).
/// With `residual` defined: sum = x + residual is written to `sum` first and normalised instead of x, in one pass; sum
/// may be x or the residual. y may be x (or the sum, where nobody needs that).
struct NormForward {
  const at::Tensor& x;
  const at::Tensor& residual;
  const at::Tensor& weight;
  const at::Tensor& bias;
  at::Tensor& y;
  at::Tensor& sum;
  at::Tensor& mean;
  at::Tensor& rstd;
};
void norm_forward(const NormForward& call, const Norm& norm);

/// dx = the gradient through the normalisation, plus `dsum` where that is defined (the gradient that the residual
/// stream brings along); dx may be dsum, dy or x. `dweight`, `dbias` float (double) [width] are added to, or begun with
/// their sums; undefined ones are left out.
struct NormBackward {
  const at::Tensor& dy;
  const at::Tensor& x;  ///< what was normalised
  const at::Tensor& weight;
  const at::Tensor& mean;
  const at::Tensor& rstd;
  const at::Tensor& dsum;
  at::Tensor& dx;
  at::Tensor& dweight;
  at::Tensor& dbias;
  bool begin_weight = false, begin_bias = false;
};
void norm_backward(const NormBackward& call, const Norm& norm);

}  // namespace trireme::kernels
