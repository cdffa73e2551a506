// Whether this library's code runs on the current device.
#include "trireme/kernels/cuda_plugin/common.cuh"
#include "trireme/kernels/cuda_plugin/functions.h"

namespace trireme::kernels::gpu {
namespace {

__global__ void nothing() {}

}  // namespace

CudaError probe() {
  nothing<<<1, 1>>>();
  if (CudaError error = launched()) return error;
  const cudaError_t error = cudaDeviceSynchronize();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace trireme::kernels::gpu
