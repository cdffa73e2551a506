// device/cuda_plugin/functions.h -- the functions of the runtime's table that are not in runtime.cpp: cuda_runtime.h
// says what they do.
#pragma once

#include <cuda_runtime.h>

#include "trireme/device/cuda_runtime.h"

namespace trireme::device::gpu {

inline CudaError error_of(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

// kernels.cu
CudaError probe();
CudaError increment(std::uint64_t* on_gpu, CudaStream stream);
// graph.cpp
CudaError begin_capture(void** graph);
CudaError end_capture(void* graph, bool instantiate);
CudaError launch_graph(void* graph, CudaStream stream);
void destroy_graph(void* graph);

}  // namespace trireme::device::gpu
