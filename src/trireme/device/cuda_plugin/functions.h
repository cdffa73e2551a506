// device/cuda_plugin/functions.h -- the functions of the runtime's table that launch kernels: kernels.cu. What they do,
// cuda_runtime.h says.
#pragma once

#include <cuda_runtime.h>

#include "trireme/device/cuda_runtime.h"

namespace trireme::device::gpu {

inline CudaError error_of(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

CudaError probe();
CudaError increment(std::uint64_t* on_gpu, CudaStream stream);

}  // namespace trireme::device::gpu
