// kernels/cuda.h -- how operators reach their bodies for GPUs: the tables of libtrireme_cuda, each loaded at the first
// call. They launch on the current stream of device/stream.h.
//
// Depends on: base, device, cuda_table.h.
#pragma once

#include <cstdint>

#include "trireme/device/stream.h"
#include "trireme/kernels/cuda_table.h"

namespace at {
class Tensor;
}

namespace trireme::kernels {

struct CudaBlockKernels;     // sparse/cuda_blocks.h
struct CudaCompressKernels;  // cuda_compress_table.h
struct CudaImageKernels;     // cuda_image_table.h
struct CudaInference;        // cuda_inference_table.h
struct CudaMoeKernels;       // cuda_moe_table.h

// ConfigError where the library is missing, is another version's, or has no code for the GPU in use.
const CudaKernels& cuda();
const CudaBlockKernels& cuda_block_kernels();
const CudaCompressKernels& cuda_compress();
const CudaImageKernels& cuda_images();
const CudaInference& cuda_inference();
const CudaMoeKernels& cuda_moe();
using device::check_cuda;
using device::cuda_capturing;
using device::cuda_stream;

/// Room for the partial sums of `sums` rows of `width` numbers, on the device of `like`.
at::Tensor cuda_sum_workspace(const at::Tensor& like, Element element, std::int64_t width, int sums);

}  // namespace trireme::kernels
