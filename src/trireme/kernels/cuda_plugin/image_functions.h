// kernels/cuda_plugin/image_functions.h -- the launching functions of the images' table: cuda_image_table.h says what
// they do.
#pragma once

#include "trireme/kernels/cuda_image_table.h"

namespace trireme::kernels::gpu {

CudaError batch_norm_statistics(const CudaBatchNormStatistics&, const CudaImageShape&, CudaStream);
CudaError batch_norm_apply(const CudaBatchNormApply&, const CudaImageShape&, CudaStream);
CudaError batch_norm_sums(const CudaBatchNormSums&, const CudaImageShape&, CudaStream);
CudaError batch_norm_gradient(const CudaBatchNormGradient&, const CudaImageShape&, CudaStream);
CudaError max_pool(const CudaMaxPool&, CudaStream);
CudaError max_pool_backward(const CudaMaxPool&, CudaStream);

}  // namespace trireme::kernels::gpu
