// kernels/cuda_compress.h -- the kernels of gradient compression for GPUs, loaded at the first call. They launch on the
// current stream of device/stream.h.
//
// Depends on: base, device, cuda_compress_table.h.
#pragma once

#include "trireme/device/stream.h"
#include "trireme/kernels/cuda_compress_table.h"

namespace trireme::kernels {

/// ConfigError where the library is missing, is another version's, or has no code for the GPU in use.
const CudaCompressKernels& cuda_compress();

}  // namespace trireme::kernels
