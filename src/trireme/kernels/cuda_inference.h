// kernels/cuda_inference.h -- how inference's operators reach their bodies for GPUs: cuda_inference_table.h, loaded at
// the first call.
//
// Depends on: base, device, cuda_inference_table.h.
#pragma once

#include "trireme/kernels/cuda.h"
#include "trireme/kernels/cuda_inference_table.h"

namespace trireme::kernels {

/// ConfigError where the library is missing, is another version's, or has no code for the GPU in use.
const CudaInference& cuda_inference();

}  // namespace trireme::kernels
