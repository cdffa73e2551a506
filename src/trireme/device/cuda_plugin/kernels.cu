// The runtime's two kernels: one that shows that this library's code runs on a GPU, one that counts.
#include "trireme/device/cuda_plugin/functions.h"

namespace trireme::device::gpu {
namespace {

__global__ void nothing() {}

/// Host memory is written past the GPU's caches; only one stream at a time counts a word, in order.
__global__ void count_one(volatile unsigned long long* word) {
  *word = *word + 1;
  __threadfence_system();
}

}  // namespace

CudaError probe() {
  nothing<<<1, 1>>>();
  if (CudaError error = error_of(cudaGetLastError())) return error;
  return error_of(cudaDeviceSynchronize());
}

CudaError increment(std::uint64_t* on_gpu, CudaStream stream) {
  count_one<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(reinterpret_cast<volatile unsigned long long*>(on_gpu));
  return error_of(cudaGetLastError());
}

}  // namespace trireme::device::gpu
