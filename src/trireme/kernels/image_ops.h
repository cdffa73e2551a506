// kernels/image_ops.h -- images on a GPU, channels last: batch norm, the sum with another tensor and ReLU in one pass
// each way, and max pooling. Of images that lie elsewhere or otherwise, norms are computed by the tensor library's
// operators.
//
//   const BatchNorm norm = batch_norm_of(x, scale, shift, 1e-5);             // reads x once
//   const NormedImage y = apply_batch_norm(norm, {.add = residual, .relu = true});
//   const BatchNormSums sums = batch_norm_sums(norm, {.dy = dy, .positive = y.positive, .wants_g = true});
//   const at::Tensor dx = batch_norm_gradient(norm, sums.g, sums, false);    // and sums.g is the residual's gradient
//
// Every step is limited by memory, so what counts is how often an image is read: batch norm and ReLU take three passes
// forward and five backward, where operators by themselves take five and eight. What ReLU let pass is known from x
// where nothing was added, else from a bit a number. Sums have a fixed order.
// Depends on: base.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace trireme::kernels {

/// What has kernels of its own: [n, channels, height, width] on a GPU, channels last, float, bfloat16 or half, in whole
/// steps of 16 bytes.
bool fits_image_ops(const at::Tensor& image);

/// A batch norm of the whole of x: (x - mean) rstd scale + shift. Scale and shift have x's type.
struct BatchNorm {
  at::Tensor x, scale, shift;
  at::Tensor mean, rstd;  ///< [channels], float; double of double
};
BatchNorm batch_norm_of(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift, double epsilon);

struct BesideNorm {
  at::Tensor add = {};               ///< undefined: nothing
  const BatchNorm* other = nullptr;  ///< another norm whose result is added instead
  bool relu = false;
  bool keeps_signs = false;  ///< what ReLU let pass, for backward
};
struct NormedImage {
  at::Tensor y;
  at::Tensor positive;  ///< bits, or bytes
};
NormedImage apply_batch_norm(const BatchNorm& norm, const BesideNorm& beside);

struct NormGradient {
  at::Tensor dy, more = {};   ///< the gradient of ReLU's output, or its two summands
  at::Tensor positive = {};   ///< undefined: no ReLU, or
  bool relu_of_norm = false;  ///< ReLU of the norm itself
  bool wants_g = false;
};
/// What all of the gradient must be read for before any of dx can be made.
struct BatchNormSums {
  at::Tensor sums;            ///< [2, channels], as the mean
  at::Tensor dscale, dshift;  ///< of x's type
  at::Tensor g;               ///< the gradient before ReLU, where it was wanted
};
BatchNormSums batch_norm_sums(const BatchNorm& norm, const NormGradient& gradient);
/// `relu_of_norm`: dy is that of ReLU's output.
at::Tensor batch_norm_gradient(const BatchNorm& norm, const at::Tensor& dy, const BatchNormSums& sums,
                               bool relu_of_norm);

struct PoolShape {
  std::int64_t kernel[2], stride[2], padding[2];
};
/// The maxima and, uint8, which element of its window each was.
std::pair<at::Tensor, at::Tensor> max_pool(const at::Tensor& x, const PoolShape& pool, std::int64_t out_height,
                                           std::int64_t out_width);
at::Tensor max_pool_backward(const at::Tensor& dy, const at::Tensor& winner, const PoolShape& pool, std::int64_t height,
                             std::int64_t width);

}  // namespace trireme::kernels
