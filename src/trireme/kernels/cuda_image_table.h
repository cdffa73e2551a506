// kernels/cuda_image_table.h -- images on a GPU, channels last: batch norm with what stands around it in one pass, and
// max pooling.
//
// Plain C++, as cuda_table.h, whose rules it follows. An image is a matrix of rows (sample, height, width) of channels,
// float, bfloat16 or half; channels come in whole steps of 16 bytes. Statistics and sums are float, summed over blocks
// of rows in an order that follows from shapes alone.
// Depends on: cuda_table.h.
#pragma once

#include <cstdint>

#include "trireme/kernels/cuda_table.h"

namespace trireme::kernels {

/// (x - mean) rstd scale + shift, by channel.
struct CudaBatchNorm {
  const void* x = nullptr;                        // [rows, channels]
  const float *mean = nullptr, *rstd = nullptr;   // [channels]
  const void *scale = nullptr, *shift = nullptr;  // [channels], of the image's type
};

struct CudaImageShape {
  std::int64_t rows = 0, channels = 0;
  Element element = Element::kFloat;
};

/// Room for partial sums: this many x 2 x channels floats.
inline constexpr std::int64_t kCudaImageBlocks = 1056;

struct CudaBatchNormStatistics {
  const void* x = nullptr;
  float* partial = nullptr;
  float *mean = nullptr, *rstd = nullptr;
  double epsilon = 0;
};

/// y = norm + (the other norm or `add`), and ReLU of it.
struct CudaBatchNormApply {
  CudaBatchNorm norm, other;  // other.x null: there is none
  const void* add = nullptr;  // null: none
  bool relu = false;
  void* y = nullptr;
  std::uint8_t* positive = nullptr;  // a bit for each number that ReLU left as it was; null: not kept
};

/// The gradient of the norm is g = (dy + more), where ReLU let it pass: by `positive`, or, `relu_of_norm`, where the
/// norm itself is positive. Sums over rows: of g, and of g (x - mean) rstd.
struct CudaBatchNormSums {
  CudaBatchNorm norm;
  const void *dy = nullptr, *more = nullptr;  // more: null, none
  const std::uint8_t* positive = nullptr;
  bool relu_of_norm = false;
  void* g = nullptr;  // also written there; null: not
  float* partial = nullptr;
  float* sums = nullptr;                      // [2, channels]
  void *dscale = nullptr, *dshift = nullptr;  // the same in the image's type
};

/// dx = scale rstd (g - mean of g - (x - mean) rstd x mean of g (x - mean) rstd).
struct CudaBatchNormGradient {
  CudaBatchNorm norm;
  const void* dy = nullptr;
  bool relu_of_norm = false;  // as above
  const float* sums = nullptr;
  void* dx = nullptr;
};

struct CudaMaxPool {
  const void* x = nullptr;         // [samples, height, width, channels]; backward: dy
  void* y = nullptr;               // [samples, out_height, out_width, channels]; backward: dx
  std::uint8_t* winner = nullptr;  // like the output: which element of its window, row by row
  std::int64_t samples = 0, height = 0, width = 0, out_height = 0, out_width = 0, channels = 0;
  std::int32_t kernel[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0};
  Element element = Element::kFloat;
};

struct CudaImageKernels {
  device::CudaTableHeader header;
  CudaError (*batch_norm_statistics)(const CudaBatchNormStatistics&, const CudaImageShape&, CudaStream);
  CudaError (*batch_norm_apply)(const CudaBatchNormApply&, const CudaImageShape&, CudaStream);
  CudaError (*batch_norm_sums)(const CudaBatchNormSums&, const CudaImageShape&, CudaStream);
  CudaError (*batch_norm_gradient)(const CudaBatchNormGradient&, const CudaImageShape&, CudaStream);
  CudaError (*max_pool)(const CudaMaxPool&, CudaStream);
  CudaError (*max_pool_backward)(const CudaMaxPool&, CudaStream);
};
inline constexpr device::CudaTableHeader kCudaImageHeader{1, sizeof(CudaImageKernels)};

extern "C" {
__attribute__((visibility("default"))) const CudaImageKernels* trireme_cuda_images();
}
using CudaImagesEntry = decltype(trireme_cuda_images);
inline constexpr const char* kCudaImagesEntry = "trireme_cuda_images";

}  // namespace trireme::kernels
